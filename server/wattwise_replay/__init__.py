"""`wattwise replay`: the server's policies against measured, or made, traces of training.

A replay's way: `traces` or `synthetic` make a `workload`; `world` says how its trials go; `engines` choose batch sizes
and decide trials; `play` runs the recurrences; `compare` sets them side by side; `report` and `plot` show it.
"""
