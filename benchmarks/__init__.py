"""What the server costs, against floors measured in the same run: `make bench`."""
