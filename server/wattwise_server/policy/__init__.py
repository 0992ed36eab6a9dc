"""Which batch size next, and when to stop: pure functions over immutable values.

You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023
(arXiv 2208.06102) is the source of the method.

- `cost`: what a trial costs, and the bound at which it is stopped
- `stopping`: whether a trial goes on
- `arm`: what an arm's succeeded trials add up to
- `explorer`: the walk that prunes
- `thompson`: Gaussian Thompson sampling
- `base`: the protocol of a policy, and the events that it observes
- `pruning_gts`, `gts`: the two policies
"""
