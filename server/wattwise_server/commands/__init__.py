"""`wattwise serve`, `token`, `backup` and `restore`: turn arguments into a Config."""
