"""What operators see of a server: the log, metrics for Prometheus, and traces.

`watchers` puts them together; `events` is what they are notified of once it is durable.
"""
