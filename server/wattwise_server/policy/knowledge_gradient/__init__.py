"""`knowledge_gradient`: one Gaussian belief over all batch sizes; each trial is weighed by what it would teach.

The cost of a trial is its number of epochs times the cost of an epoch, and each is smooth over batch sizes, so that a
trial at one batch size says much about the others:

    b     batch size; x = log2 b
    E     epochs to the target; ln E = e(x) + noise
    c     cost of an epoch in joules; ln c = k(x) + noise, nearly without noise
    C     cost of a trial that reaches the target: C = E·c
    e(x)  = const + ln(1 + b/B + L/b) + d(x): the gradient-noise-scale law E ∝ 1 + b/B (McCandlish et al., "An Empirical
          Model of Large-Batch Training", 2018; measured by Shallue et al., "Measuring the Effects of Data Parallelism
          on Neural Network Training", JMLR 20, 2019), sometimes with a rise to the left, L/b
    k(x)  = const + ln(1 + K/b) + d(x): a batch costs a fixed part and a part for each sample
    d(x)  a Gaussian process: how far a job deviates from the law
    m, S  mean and covariance of the belief about e or k at the job's batch sizes
    s²    variance of ln E between usual trials of one batch size
    u     rate of unusual trials, which take far more or fewer epochs than others of their batch size, or never reach
          the target; w is the share of those that reach it after all, τ² what they add to s²
    misfit  expected variance of d(x), relative to that before any trial: how badly the law fits

B, L and K lie on a grid of knots, and the process has one of several amplitudes, so that the belief is a mixture of
Gaussians; its first two moments are used. A trial that missed the target has one of three reasons: E was larger; it was
unusual; or its batch size always misses. With a small batch a training takes about ten epochs, give or take a factor of
three: that is const. So a job whose first trial takes hundreds of epochs is expected to need fewer with smaller
batches.

    ok    expected cost of a trial that reaches the target, at most its limit
    q     probability that a trial misses the target; r that it crashes
    A     expected cost of a trial:  (1−r)·((1−q)·ok + q·limit) + r·(cost of a crash)
    R     expected cost of a model if only this batch size is used, misses and crashes included:  A / ((1−r)·(1−q))

The best known batch size is the one with the least R among those that have reached the target.

A trial pays off if its cost now, less what knowing its result is expected to save over the coming deliveries, is less
than that of the best known batch size: the knowledge gradient (Frazier, Powell and Dayanik, "A Knowledge-Gradient
Policy for Sequential Information Collection", SIAM J. Control Optim. 47(5), 2008), for correlated beliefs (the same
authors, INFORMS J. Comput. 21(4), 2009) and with the cost of the trials themselves (Ryzhov, Powell and Frazier, Oper.
Res. 60(1), 2012). What running trials will teach counts as known.

A trial is stopped at β times the least expected cost of one that reaches the target, a trial of the best batch size
once starting again is expected to cost less than going on. When results are too surprising in a row, older trials no
longer count. All is deterministic.

The modules, in the order of a paper:

- model: `constants`; `model`, the laws and the processes; `unusual`, the likelihood of a trial; `edges`, the batch
  sizes that always miss
- belief: `evidence`, the sufficient statistics of trials; `gaussian_processes` and `expectation_propagation`, the
  inference; `belief`, its result
- value of a trial: `values`
- choice: `choice`
- stopping: `stopping`
- changes of the job: `changes`
- state: `state`, what is kept between two events, as JSON in `Search.notes`; `policy`, what each event adds to it
"""

from wattwise_server.policy.knowledge_gradient.constants import Constants, Deviation
from wattwise_server.policy.knowledge_gradient.policy import POLICY, KnowledgeGradient

__all__ = ["POLICY", "Constants", "Deviation", "KnowledgeGradient"]
