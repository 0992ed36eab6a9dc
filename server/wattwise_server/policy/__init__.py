"""The choice of batch sizes and the end of trials: pure functions over immutable values.

You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023
(arXiv 2208.06102) is the source of the cost, the bound, the pruning walk and Thompson sampling; `knowledge_gradient`
names its own sources.

- `base`: the protocol of a policy, its choices and beliefs
- `registry`: the policies by name
- `knowledge_gradient`: the default policy
- `pruning_gts`, `gts`: the paper's policy, and its bandit alone
- `explorer`, `thompson`: their parts, the walk that prunes and Gaussian Thompson sampling
- `search`, `history`: the search after an event, and what every event adds to it whatever the policy
- `failures`: which batch sizes are set aside, excluded or available
- `requests`: choices that a person has made instead of the policy
- `bounds`, `stopping`: the cost at which a trial is stopped, and whether it continues
- `decisions`: the answer to a trial's trainer, and its message
- `power`: the cheapest power limit
- `savings`: what a job has saved
"""
