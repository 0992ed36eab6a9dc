"""The `wattwise` command, its subcommands and its tables."""
