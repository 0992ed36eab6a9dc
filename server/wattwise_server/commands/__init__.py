"""`wattwise serve`, `token`, `backup`, `restore`, `migrate` and `copy`: turn arguments into a Config."""
