"""The storage contract on one SQLite file with one owner."""
