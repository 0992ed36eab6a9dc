"""The storage of jobs, trials and measurements.

- `base`: the contract, in prose
- `tables`: each table once; `columns`: how values are stored in columns; `rows` reads values, `changes` writes them
- `cache`: the transactions of both databases; `writer` commits their changes in groups
- `reads`: all reads; `lists` and `aggregates` are the SQL of lists and of sums
- `sqlite`, `postgres`: what differs; `open` leads from a URL to a store
- `copying`, `retention`, `subscriptions`: copies of a database, old measurements, changes of jobs and trials
"""
