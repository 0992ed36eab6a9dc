"""The files of deploy/ fit each other and the program."""
