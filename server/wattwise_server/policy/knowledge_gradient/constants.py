"""The constants of the model, and what a low, the usual and a high value of each do.

Chosen with `make decisions` and `make ablation`: on eight recorded settings, real small trainings, and synthetic
worlds, some of them with unlucky runs or with a change. docs/policies.md has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Deviation(NamedTuple):
    """A Gaussian process for the deviation from a law: its standard deviation, and its length in octaves."""

    amplitude: float
    octaves: float


_EPOCHS_DEVIATIONS = (Deviation(0.1, 2.0), Deviation(0.3, 2.0), Deviation(0.6, 1.5))
_COST_DEVIATION = Deviation(0.2, 3.0)


@dataclass(frozen=True)
class Constants:
    """The constants.

    Attributes:
        usual_epochs: Epochs that a training with a small batch takes, before any trial.
        usual_spread: Standard deviation of the logarithm of that number. Low: a job that takes 200 epochs is expected
            to take fewer with another batch size, and pays to find out. High: only the laws tell where to look.
        epochs_noise: Prior standard deviation of ln E between trials of one batch size. Low: one trial decides, and
            ordinary noise looks unusual. High: batch sizes are tried more often before one is preferred.
        whole_epochs: Part of its variance that comes from whole epochs, times E². Matters below ten epochs. Low: a
            trial of four epochs beside others of three looks unusual. High: short trainings are tried more often.
        noise_weight: Weight of that prior, in trials. Low: the first trials decide how noisy a job is.
        pooling: Weight of the job's noise in that of a batch size, in trials. Low: a few equal results make a batch
            size look free of noise. High: all batch sizes are equally noisy.
        epochs_deviations: The processes of e; the data decide which of them fits. Larger amplitudes or shorter lengths
            let neighbours differ more, so that more batch sizes are tried.
        epochs_apart: Standard deviation of e at a batch size apart from its neighbours. Low: neighbours of a known
            batch size are not tried. High: each batch size has to be tried by itself.
        cost_deviation: The process of k. A larger amplitude or a shorter length makes untried batch sizes more
            uncertain, so that more are tried.
        cost_apart: As `epochs_apart`, for k.
        cost_noise: Standard deviation of ln c between trials. Low: one trial tells what an epoch costs. High: several
            are needed, and small changes of the cost go unnoticed.
        rise: Prior probability that E rises for small batch sizes. Low: misses of small batch sizes surprise. High:
            small batch sizes look less promising.
        unusual: Prior probability that a trial is unusual: u. Low, such as 0.01: one unlucky trial rules a batch size
            out. High, such as 0.1: batch sizes that are bad are tried again and again.
        unusual_weight: Weight of that prior, in trials. Low: a single unusual trial makes the next one expected. High:
            a job with many unlucky runs is known as one only late.
        unusual_spread: Standard deviation of ln E of unusual trials that reach the target. Low: a trial of five times
            the epochs pulls the belief. High: one of twice the epochs counts as usual.
        reaches: Prior probability that an unusual trial reaches the target: w. Low: a miss is likelier to be bad luck
            than a late trial. High: the reverse.
        reaches_weight: Weight of that prior, in unusual trials. Low: the first unusual trial tells how the next ones
            end. High: the prior stays.
        edge: Rate per octave at which batch sizes beyond those that have reached the target begin to miss it always.
            Low, such as 0.05: trials go far at once, and fail there. High, such as 0.5: one neighbour at a time.
        apart: Prior probability that a batch size always misses although its neighbours do not. Low: one between two
            that reach the target is tried after every miss. High: one miss sets it aside.
        begins: Prior probability that a batch size that has reached the target has begun to miss it always. Low: the
            best batch size is repeated after several misses in a row. High: one miss makes launches avoid it.
        doubt: Probability of a row of misses below which the job itself is doubted and the default is tried. Low: many
            trials in a row miss before that. High: two unlucky trials lead back to the default.
        horizon: Future deliveries that benefit from what is learned now, besides as many as there were trials. Low:
            little is tried.
        misfit_horizon: As many more for each unit of misfit: the less the law says, the more there is to learn. Low: a
            job that follows no law is searched too little. High: one that follows the law is searched too long.
        windows: With a window, at most those of this many windows: a choice outlives the trials that led to it. Low: a
            short window ends the search. High: the search repeats what the window forgets.
        soon: Share of these deliveries before that of another trial follows. Low: cheap trials come first. 1: the most
            useful trial comes first.
        repeats: Trials that are considered together where a single one cannot change the choice. 1: an unlucky trial of
            a batch size that is a little cheaper than the best is not repeated.
        model_weight: Weight of the model in the probability of a miss, in trials. Low: a batch size's own misses count
            at once. High: all batch sizes that reach the target miss it equally often.
        crash_weight: Weight of the job's crash rate in that of a batch size, in trials. Low: one crash makes a batch
            size expensive. High: one that crashes often stays in use.
        patience: A trial of the best batch size is not stopped before this multiple of its expected cost. Low: ordinary
            late trials are stopped. High: unlucky ones cost more.
        heavy: Factor of the standard deviation of ln E when a trial of the best batch size is stopped; caution, as
            nobody else delivers if the belief is wrong. Low: trials are stopped that were about to reach the target.
            High: hardly any is stopped.
        insurance: Share of all trials that may try batch sizes that the model does not recommend, for each unit of
            misfit. 0: a second valley behind a hill is never found. High: paid where there is one valley, too.
        threshold: ln of the likelihood ratio at which a change of the epochs is reported. Low, such as 8: false alarms
            in jobs with unlucky runs. High, such as 25: a change goes unnoticed for several more trials.
        cost_threshold: As `threshold`, for the cost of an epoch.
        cost_least: ln of the smallest change of the cost of an epoch that is reported. Low, such as 0.02: the drift of
            a machine is reported. High, such as 0.5: what raises costs by half goes unnoticed.
        most: Largest ln of the ratio that one trial may contribute, so that no single trial causes an alarm. Low: clear
            changes take more trials. High, such as 10: two surprising trials suffice.
        shift: Size of the small changes looked for, in standard deviations of a trial. Low: smaller changes are found,
            later. High: only changes that the large ones cover.
        jump, jump_spread: ln of the large changes looked for: mean and standard deviation. Low: changes by a factor of
            three take longer to detect. High: those by a factor of 1.5 do.
        broken: Probability of a miss after a large change for the worse. Low: a row of misses is taken for bad luck for
            longer. High: a row of slow trials is.
        cost_unusual, cost_unusual_spread: As `unusual` and `unusual_spread`, for the cost of an epoch.
        cost_jump, cost_jump_spread: As `jump` and `jump_spread`, for the cost of an epoch.
        prior_weight: Largest weight of a prior job, in trials of each batch size. Low: a right prior job saves little.
            High: a prior job that is a little wrong misleads for longer.
        prior_trust: Prior probability that the prior jobs tell the epochs of this one. Low: one late trial makes a
            right prior job useless. High: a wrong one is believed for several trials.
        laws, censored, waves: Whether the laws, the trials that missed and plans for launches without a result are
            used; to measure what they bring.
    """

    usual_epochs: float = 10.0
    usual_spread: float = 1.3
    epochs_noise: float = 0.13
    whole_epochs: float = 0.5
    noise_weight: float = 8.0
    pooling: float = 12.0
    epochs_deviations: tuple[Deviation, ...] = _EPOCHS_DEVIATIONS
    epochs_apart: float = 0.05
    cost_deviation: Deviation = _COST_DEVIATION
    cost_apart: float = 0.03
    cost_noise: float = 0.01
    rise: float = 0.35
    unusual: float = 0.05
    unusual_weight: float = 10.0
    unusual_spread: float = 1.0
    reaches: float = 0.5
    reaches_weight: float = 2.0
    edge: float = 0.2
    apart: float = 0.02
    begins: float = 0.003
    doubt: float = 0.003
    horizon: float = 50.0
    misfit_horizon: float = 70.0
    windows: float = 3.0
    soon: float = 0.5
    repeats: int = 2
    model_weight: float = 16.0
    crash_weight: float = 2.0
    patience: float = 1.3
    heavy: float = 1.5
    insurance: float = 0.02
    threshold: float = 16.0
    cost_threshold: float = 16.0
    cost_least: float = 0.08
    most: float = 5.0
    shift: float = 1.5
    jump: float = 1.0
    jump_spread: float = 0.7
    broken: float = 0.5
    cost_unusual: float = 0.02
    cost_unusual_spread: float = 0.5
    cost_jump: float = 0.5
    cost_jump_spread: float = 0.4
    prior_weight: float = 4.0
    prior_trust: float = 0.8
    laws: bool = True
    censored: bool = True
    waves: bool = True
