"""The specification of knowledge_gradient: its maths, implemented plainly and apart from the policy.

Every pair of a curve and a process is a Gaussian of its own, conditioned with plain inverses; what other trials say is
found by leaving a trial out; moments and tails are integrated numerically; edges are enumerated. Used by
test_knowledge_gradient_model.py. The constants are those of the policy; how often and how carefully beliefs are refined
is stated in `unusual`.
"""
