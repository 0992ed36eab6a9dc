"""`wattwise run`: launches a training command again and again, with the batch sizes that the server chooses."""
