"""Who watches the server: the log, figures for Prometheus, and traces.

`watchers` puts them together. They are told of calls by `calls`, and through `wattwise_server.observe` of what became
durable.
"""
