"""A running trial: the calls of a training loop, and all that they need."""
