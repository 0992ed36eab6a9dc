"""Chooses batch sizes and stops trials: pure functions over immutable values.

You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023
(arXiv 2208.06102) is the source of the cost, the bound, the pruning walk and Thompson sampling; `knowledge_gradient`
names its own sources.

- `bounds`: the cost at which a trial is stopped
- `stopping`: the cost, the bound and the verdict of a trial
- `decisions`: the answer to a trial's trainer, and its message
- `search`: a job's search after an event, or after all of them
- `history`: what every event adds to a job's history, whatever its policy
- `failures`: which batch sizes are set aside, excluded or available
- `explorer`: the walk that prunes
- `thompson`: Gaussian Thompson sampling
- `base`: the protocol of a policy, its choices and beliefs
- `power`: the cheapest power limit
- `registry`: the policies by name
- `knowledge_gradient`: the default policy
- `pruning_gts`, `gts`: the paper's policy, and its bandit alone
"""
