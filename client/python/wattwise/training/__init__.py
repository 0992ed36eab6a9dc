"""A trainer's trial: the calls of a training loop and their parts.

`optimizer` is what users call; `launch` and `driver_launch` start a trial; `running` is a trial under way;
`session`, `exchange` and `stream` are its connection to the server. `wattwise.power` works on `running.RunningTrial`.
"""
