"""Where jobs, trials and measurements are kept.

- `base`: the contract, in prose
- `sqlite`: one file, one owner; `writer` commits in groups, `rows` knows the columns, `migrate` the schema's versions
- `hub`: who wants to know of changes
"""
