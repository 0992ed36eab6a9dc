"""The storage of jobs, trials and measurements.

- `base`: the contract, in prose
- `tables`: each table once; `columns`: how values are stored in columns; `rows` reads values, `changes` writes them
- `transactions`: those of both databases, over a cache of jobs; `writer` commits their changes in groups
- `reads`: all reads; `lists` and `aggregates` are the SQL of lists and of sums
- `sqlite`, `postgres`: what differs; `open` leads from a URL to a store
- `copying`, `retention`, `subscriptions`: copies of a database, old measurements, changes of jobs and trials
"""
