"""Where jobs, trials and measurements are kept.

- `base`: the contract, in prose
- `open`: from a database's URL to a store; `backup` copies a database and puts it back
- `sqlite`: the contract on one file with one owner; `writer` commits in groups through `connection`
- `queries`: all reads; `rows` knows the columns, `migrate` the schema's versions
- `retention`: old measurements; `subscriptions`: changes of jobs and trials
"""
