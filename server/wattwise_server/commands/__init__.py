"""`wattwise serve`, `token`, `backup` and `restore`: from arguments to a frozen Config."""
