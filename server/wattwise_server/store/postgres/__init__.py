"""The storage contract on a PostgreSQL that any number of servers share."""
