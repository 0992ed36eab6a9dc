"""A trainer's trial: the calls of a training loop and their parts.

`optimizer` is what users call. `launch` starts a trial, by the table in `start`; `assigned` is the trial of a driver.
`running` is a trial under way, `state` the table of its states. `session` and `stream` call the server in a thread of
their own; `exchange`, which has the journal, is all that this thread and the trainer's share. `journal`, `spool` and
`delivery` keep and deliver what the server does not have. `wattwise.power` works on `running.RunningTrial`.

A metric goes from `BatchSizeOptimizer.on_evaluate` to `RunningTrial.end_epoch`, on rank 0 through `Ranks.on_first`, and
with the measurements to `Exchange.report`, which keeps it in the `Journal`; from there `ResultStream` takes it, in the
session's thread, to `Client.stream_results`.
"""
