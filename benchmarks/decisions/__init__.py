"""The evidence for decisions: `make decisions` plays the policies in many worlds and judges what they cost.

`rows` says what is played and which limits apply, `cases` creates the workloads, `worlds` those that only this command
needs; `playing` plays them on all processors, `scores` one after another; `figures` are computed from the scores, and
`report` prints them. `ablation` is a command of its own. Development only: nothing of it is in the wheel.
"""
