"""A trainer's trial: the calls of a training loop and their parts.

`optimizer` is what users call. `launch` starts a trial, by the table in `start`; `assigned` is the trial of a driver.
`running` is a trial under way, `state` the table of its states. `session` and `stream` call the server in a thread of
their own; `exchange`, which has the journal, is all that this thread and the trainer's share. `journal`, `spool` and
`delivery` keep and deliver what the server does not have. `wattwise.power` works on `running.RunningTrial`.

A metric goes through nine functions, without those of the `Journal` and of gRPC, from a training loop to the wire:
`BatchSizeOptimizer.on_evaluate`, `RunningTrial.end_epoch`, `Ranks.on_first`, `RunningTrial._measure_epoch`, which makes
a message of it by `training_result`, `Exchange.report`, which keeps it in the journal, and `Exchange.post`. From there
`ResultStream._next_request` takes it, in a thread of gRPC, as `Exchange.next_report`.
"""
