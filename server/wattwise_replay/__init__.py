"""`wattwise replay`: runs the server's policies over measured or synthetic traces of training.

`traces` and `synthetic` create a `workload`; `world` determines the course of its trials; `engines` choose batch sizes
and decide trials, the server's policies among them (`in_process`, `over_grpc`); `play` runs the recurrences; `compare`
compares the results; `tables` and `plot` show them.
"""
