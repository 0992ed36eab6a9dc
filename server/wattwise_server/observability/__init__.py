"""What operators see of a server: the log, metrics for Prometheus, and traces.

`telemetry` sets them up. They are notified of calls (`call`) and of durable events (`events`).
"""
