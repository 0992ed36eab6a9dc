"""Calls to the server: the channel, credentials, retries, one method per RPC."""
