"""The calls of a training loop that trains at the cheapest power limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.errors import MonitorError, OperationOrderError, log, short_tracebacks
from wattwise.monitor import Monitor, monitor_kinds
from wattwise.monitor.plausible import CheckedMonitor
from wattwise.power.calls import PowerLimitCalls
from wattwise.power.profile import ComputedUsage, Profile, Walk, cost_per_step, limits_between
from wattwise.power.settings import ProfileSettings, profile_settings
from wattwise.rpc.backoff import check_seconds
from wattwise.spec import max_power_watts
from wattwise.training.optimizer import BatchSizeOptimizer, running_trial
from wattwise.training.running import RunningTrial

if TYPE_CHECKING:
    from typing_extensions import Self


@short_tracebacks
class PowerLimitOptimizer:
    """Trains at the cheapest GPU power limit: the one that the server knows, or the one that it finds while training.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        plo = PowerLimitOptimizer(bso)
        batch_size = bso.get_batch_size()
        bso.on_train_begin()
        for epoch in range(max_epochs):
            for batch in batches:
                plo.on_step_begin()
                ...  # one training step
                plo.on_step_end()
            plo.on_epoch_end()
            bso.on_evaluate(evaluate())

    The first trial of a batch size walks the limits from the highest that the GPUs allow downwards, until two in a row
    cost more than the best, and reports its measurements. Later trials set the cheapest limit at their first step.
    Profiling is part of the trial's time and energy. While another trial profiles, or the server is unavailable, this
    one trains at the current limit and asks again after every epoch.

    All GPUs of the monitor get the limit. The previous limits are restored when the trial is over, this object is
    closed, or the process exits, fails with an exception or is terminated; only SIGKILL and `os._exit` leave the limits
    as they are. If limits cannot be set, without a GPU or without permission, one warning is logged and training goes
    on.

    In a loop over `bso.attempts()` create it once: every attempt gets the limit of its batch size.

    With `torch.distributed` every rank may make the calls; rank 0 sets and measures all GPUs of its own monitor.

    Args:
        bso: the optimizer of the trial; it may not have its batch size yet.
        step_watts: the distance between two limits. None reads `WATTWISE_PROFILE_STEP_WATTS`, which `wattwise run`
            sets; the default is 25.
        profile_warmup_iters: unmeasured steps at each limit. None reads `WATTWISE_PROFILE_WARMUP_ITERS`; the default
            is 10.
        profile_measure_iters: measured steps at each limit, which together should take a second or more. None reads
            `WATTWISE_PROFILE_MEASURE_ITERS`; the default is 40.
        observer_mode: train at the highest limit, and report the usage that the cheapest would have had, computed from
            the profile of the batch size, beside the measured one; the server's costs are then the computed ones. None
            reads `WATTWISE_OBSERVER_MODE`; the default is False.
        timeout: seconds that a call to the server may delay the training.

    Raises:
        InvalidArgumentError: if a setting or its variable is invalid, or `timeout` is not a number of seconds.
    """

    def __init__(
        self,
        bso: BatchSizeOptimizer,
        *,
        step_watts: float | None = None,
        profile_warmup_iters: int | None = None,
        profile_measure_iters: int | None = None,
        observer_mode: bool | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._settings = profile_settings(step_watts, profile_warmup_iters, profile_measure_iters, observer_mode)
        self._bso = bso
        self._timeout = check_seconds("timeout", timeout)
        self._pid = os.getpid()
        self._trial: RunningTrial | None = None
        self._limiter: _Limiter | None = None
        self._steps = 0
        self._over = False
        self._gave_up = False

    def __repr__(self) -> str:
        return f"PowerLimitOptimizer({self._bso!r}, limit_watts_per_gpu={self.limit_watts_per_gpu})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def limit_watts_per_gpu(self) -> float | None:
        """The limit at which the trial trains; None before it is known, and after the previous limits are restored."""
        limiter = self._active
        return None if limiter is None else limiter.watts

    @property
    def profiling(self) -> bool:
        """Whether this trial is walking the limits."""
        limiter = self._active
        return limiter is not None and limiter.profile is not None

    @property
    def computed(self) -> ComputedUsage | None:
        """The usage at the cheapest and the highest limit in observer mode; None before the profile is known."""
        samples = None if self._limiter is None else self._limiter.samples
        return None if samples is None else ComputedUsage.of(self._steps, *samples)

    def on_step_begin(self) -> None:
        """Starts a training step; the first call asks the server.

        Raises:
            OperationOrderError: before the trial has its batch size.
        """
        self._follow()
        if self._limiter is None and not self._over:
            self._pid = os.getpid()
            self._guarded(self._begin)
        limiter = self._active
        if limiter is not None and limiter.profile is not None:
            self._guarded(limiter.profile.begin_step)

    def on_step_end(self) -> None:
        """Ends a training step."""
        self._steps += 1
        limiter = self._active
        if limiter is not None:
            self._guarded(limiter.end_step)

    def on_epoch_end(self) -> None:
        """Ends an epoch; call it after its last step and before the evaluation, which is not profiled."""
        limiter = self._active
        if limiter is None:
            return
        if self._bso.training_finished:
            self.close()
            return

        def end_epoch() -> None:
            limiter.end_epoch()
            if self.computed is not None:
                log.info("%s", self.computed)

        self._guarded(end_epoch)

    def close(self) -> None:
        """Restores the previous limits, until another attempt begins. May be called repeatedly.

        Does nothing in a forked process.
        """
        if os.getpid() != self._pid or self._over:
            return
        self._over = True
        limiter = self._limiter
        if limiter is None:
            return
        limiter.restore()
        if limiter.profile is not None:
            walk = limiter.profile.walk
            log.warning(
                "training ended during profiling, after %d of %d power limits: the profile is not stored; lower "
                "profile_measure_iters or raise step_watts if this happens again",
                *(len(walk.samples), len(walk.limits)),
            )
        if limiter.calls.unreported:
            log.warning("the power profile was not reported to the server: the next trial profiles again")

    @property
    def _active(self) -> _Limiter | None:
        """None before the first step, and once this is closed or has given up, maybe in a signal handler."""
        return None if self._over else self._limiter

    def _guarded(self, action: Callable[[], None]) -> None:
        """Runs an action whose failure must not end the training; does nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        try:
            action()
        except OperationOrderError:
            raise
        except MonitorError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - a monitor of another library may raise anything
            self._give_up(f"cannot profile power limits: {type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        log.warning("%s; training continues at the current power limit", why)
        self._over = self._gave_up = True
        if self._limiter is not None:
            self._limiter.restore()

    def _follow(self) -> None:
        """Begins again if another trial has begun, whose predecessor's end has restored the limits."""
        if self._trial is None or self._gave_up or os.getpid() != self._pid:
            return
        if running_trial(self._bso) is not self._trial:
            self._trial = self._limiter = None
            self._steps, self._over = 0, False

    def _begin(self) -> None:
        trial = self._trial = running_trial(self._bso)
        monitor = trial.monitor
        if trial.info.rank or trial.finished or monitor is None:
            self._over = True
        elif trial.info.trial.fallback:
            # The limits are known to the server only, and a profile is stored for a trial that it has dispatched.
            self._over = True
            log.info("this trial trains on the fallback batch size, at the current power limit")
        elif not monitor.gpu_indices:
            self._give_up(f"{monitor!r} measures no GPU")
        elif any(kind.startswith("amdsmi") for kind in monitor_kinds(monitor).kinds):
            self._give_up(f"power limits can only be set on NVIDIA GPUs, and {monitor!r} measures others")
        else:
            self._limiter = _Limiter(trial, monitor, self._settings, self._timeout)
            # Calls back at once if the trial has ended in the meantime.
            trial.end_actions.add(self.close)
            if not self._over:
                self._limiter.ask()


class _Limiter:
    """Asks for the power limit of a trial's GPUs, or profiles them, and sets it.

    Attributes:
        limits: the limits of the GPUs.
        calls: the calls to the server.
        profile: the profile under way; None before and after it.
        samples: in observer mode, those of the cheapest and the highest limit, once they are known.
        watts: the limit at which the trial trains; None before it is known.
    """

    def __init__(self, trial: RunningTrial, monitor: Monitor, settings: ProfileSettings, timeout: float) -> None:
        from wattwise.monitor.power_limits import PowerLimits  # noqa: PLC0415 - only needed where there are GPUs

        self._trial = trial
        # A limit affects only the GPUs: the other parts of a combined monitor would blur the comparison.
        self._gpus: Monitor = getattr(monitor, "gpu_monitor", monitor)
        self._settings = settings
        self.limits = PowerLimits(monitor.gpu_indices)
        self.limits.check_permission()
        self.calls = PowerLimitCalls(lambda: trial.client(timeout), trial.info.id, trial.claim_outage_warning)
        self.profile: Profile | None = None
        self.samples: tuple[v1.PowerSample, v1.PowerSample] | None = None
        self.watts: float | None = None
        if settings.observer_mode and trial.power is not None:
            trial.power.observe(self.limits.highest_watts)

    def restore(self) -> None:
        self.limits.restore()
        if self._trial.power is not None:
            self._trial.power.forget()

    def ask(self) -> None:
        answer = self.calls.acquire()
        if answer is None:
            return
        if answer.action == v1.POWER_ACTION_PROFILE:
            self._start()
        elif answer.action == v1.POWER_ACTION_USE_LIMIT:
            if self._settings.observer_mode:
                self._observe(answer.cheapest, answer.highest)
            else:
                self._settle(answer.power_setting.limit_watts_per_gpu)

    def end_step(self) -> None:
        if self.profile is None:
            if self._trial.power is not None:
                self._trial.power.end_step()
            return
        self.profile.end_step()
        walk = self.profile.walk
        if walk.limit is None and walk.best is not None:
            known = self.calls.report(walk.samples)
            if self._settings.observer_mode:
                self._observe(walk.best, walk.samples[0])
            else:
                self._settle(walk.best.power_setting.limit_watts_per_gpu if known is None else known)
            self.profile = None

    def end_epoch(self) -> None:
        if self.profile is not None:
            self.profile.pause()
        elif self.watts is None:
            self.ask()
        elif (known := self.calls.report_again()) is not None:
            self._settle(known)

    def _start(self) -> None:
        limits, trial = self.limits, self._trial.info
        spec = trial.job.spec
        between = limits_between(limits.lowest_watts, limits.highest_watts, self._settings.step_watts)
        log.info("profiling power limits %g W to %g W (now %s)", between[0], between[-1], limits.describe())
        self.profile = Profile(
            Walk(between, lambda sample: cost_per_step(spec, sample)),
            CheckedMonitor(self._gpus, max_power_watts(spec)),
            f"wattwise power {trial.id.job_id} {trial.id.trial_number}",
            warmup_iters=self._settings.warmup_iters,
            measure_iters=self._settings.measure_iters,
            set_limit=limits.set,
        )

    def _observe(self, cheapest: v1.PowerSample, highest: v1.PowerSample) -> None:
        """Trains at the highest limit from now on, and computes the usage at the cheapest."""
        self.samples = cheapest, highest
        self._settle(cheapest.power_setting.limit_watts_per_gpu)
        if self._trial.power is not None:
            self._trial.power.know(cheapest, highest)

    def _settle(self, watts: float) -> None:
        """Sets the limit to train at from now on."""
        self.watts = self.limits.set(self.limits.highest_watts if self._settings.observer_mode else watts)
        self._trial.record_power_limit(self.watts)
        log.info("power limit %g W for every GPU (the cheapest is %g W)", self.watts, watts)
