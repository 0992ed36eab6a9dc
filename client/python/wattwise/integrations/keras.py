"""Wattwise in Keras 3, whatever its backend: `pip install "wattwise[keras]"`."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, NamedTuple

try:
    import keras
    from keras.callbacks import Callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'wattwise.integrations.keras needs Keras 3 and a backend: pip install "wattwise[keras]" ({error})',
        name=error.name,
    ) from error

from wattwise.errors import ResumeError, TrainerSetupError, log
from wattwise.integrations.callback import CallbackTrial, Plan
from wattwise.integrations.epoch_states import EpochState, EpochStates
from wattwise.integrations.frames import callers
from wattwise.integrations.loader import batch_size_of
from wattwise.integrations.steps import StepListener
from wattwise.training.optimizer import BatchSizeOptimizer, running_trial
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "gradient_accumulation_steps")
_BACKUP = "training_metadata.json"
"""What `BackupAndRestore` writes last when it saves."""

_models: weakref.WeakSet[keras.Model] = weakref.WeakSet()
"""The models that were trained with a callback."""


class WattwiseCallback(Callback):
    """Reports every evaluation, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="val_accuracy")  # gets the batch size
            model.fit(..., batch_size=callback.fit_batch_size(), validation_data=..., callbacks=[callback])

    If the trial ends without its target, training stops as usual, and `fit()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception that leaves the block or ends the process
    ends the trial with that reason. The callback moves to the end of the list, so that the others have wrapped up.

    An epoch of the trial is what is trained between two reports: an epoch of Keras, several with `validation_freq`, or
    a number of examples with `steps_per_epoch=callback.steps(examples)`. Time and energy are measured from the
    beginning of `fit()`; an epoch includes its validation.

    A checkpoint of Keras has no place for the state of the trial. `checkpoint` names a folder for it: that of
    `BackupAndRestore`, or any other that you keep with your own checkpoints. If the folder has a state, the callback
    gets the batch size of that trial, which continues at the epoch from which `fit()` continues:

        callback = WattwiseCallback(bso, metric="val_accuracy", checkpoint="backup")
        model.fit(..., callbacks=[keras.callbacks.BackupAndRestore("backup"), callback])

    With several processes, connect them before you create the callback. All of them read the folder.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric in the logs of `fit()`, such as "val_accuracy" or "val_loss".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.
        checkpoint: the folder for the state of the trial. The state is removed when the trial is over.
        count_from_zero: whether a training that continues an earlier one without its state counts as a complete one,
            because every launch of the job continues from there. Otherwise it is refused.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet, or the folder cannot be
            used.
        ResumeError: if the trial of the folder's state cannot continue.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(
        self,
        bso: BatchSizeOptimizer,
        metric: str,
        *,
        power: StepListener | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        count_from_zero: bool = False,
    ) -> None:
        super().__init__()
        self._states = None if checkpoint is None else EpochStates(checkpoint)
        newest = None if self._states is None else self._states.newest
        try:
            saved = None if newest is None else newest.trial
            self._trial = CallbackTrial(bso, metric, power, saved=saved, count_from_zero=count_from_zero)
        except ResumeError as error:
            if self._states is None or newest is None:
                raise
            raise ResumeError(
                f"{error} (the state is in {self._states.path}: remove it, with the model's checkpoint, to train from "
                "the start)"
            ) from None
        # Without step measurements Keras need not wait for a batch before it begins the next.
        self.async_safe = power is None
        self._metric = metric
        self._accumulated = 1
        self._used = self._begun = self._trained = False
        # Whether something has stopped the training within the epoch.
        self._stopped = False
        # Epochs of Keras between two reports, and steps in an epoch of Keras; None if unknown.
        self._every = 1
        # The size that the data state for their batches.
        self._size: int | None = None
        # Whether the metric is that of Keras's own validation.
        self._validates = False
        self._steps: int | None = None
        self._epoch = 0
        # Steps from the last report to the beginning of the epoch, and within the epoch; all steps at its beginning.
        self._before = self._batches = self._total = 0
        self._lock = threading.Lock()
        self._backup = None if self._states is None else self._states.path.with_name(_BACKUP)
        self._backup_time = 0

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    @property
    def gradient_accumulation_steps(self) -> int | None:
        """The argument of the optimizer that `fit_batch_size` counts on; None if nothing is accumulated.

        size = callback.fit_batch_size(max_per_device=32)
        adam = keras.optimizers.Adam(gradient_accumulation_steps=callback.gradient_accumulation_steps)
        """
        return None if self._accumulated == 1 else self._accumulated

    def fit_batch_size(
        self,
        *,
        gradient_accumulation_steps: int | None = None,
        max_per_device: int | None = None,
        devices: int | None = None,
    ) -> int:
        """Returns the batch size for `fit()`, or for the data set that is passed to it. Keras splits it over devices.

        With several ranks it is the share of each.

        Args:
            gradient_accumulation_steps: the value of the optimizer (default 1).
            max_per_device: the largest size per device that fits into memory; determines the value of the optimizer,
                which is then `callback.gradient_accumulation_steps`. Not together with that value.
            devices: the number of devices over which the ranks split a batch, for `max_per_device`; by default one per
                rank.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        batch, ranks = self._trial.batch, self._trial.ranks
        steps = 1 if gradient_accumulation_steps is None else gradient_accumulation_steps
        if max_per_device is not None:
            if gradient_accumulation_steps is not None:
                raise TrainerSetupError("pass either max_per_device or gradient_accumulation_steps")
            _, steps = batch.accumulated(ranks if devices is None else devices, max_per_device)
        size = _SPLIT.size_for(batch, devices=ranks, steps=steps)
        self._accumulated = steps
        return size

    def steps(self, examples: float) -> int:
        """Returns the number of steps that pass about `examples` examples, for `steps_per_epoch`.

        Call `fit_batch_size` before if gradients are accumulated: a step of Keras is one batch.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        return self._trial.steps_for(examples) * self._accumulated

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Checks that this is the only training of the callback.

        Raises:
            TrainerSetupError: if it is not.
        """
        if self._used:
            raise self._trial.repeated()
        self._used = True

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Checks `fit()`, continues the trial of the state and opens the measurement window, before the first epoch.

        Raises:
            TrainerSetupError: if the training is not a complete one with the trial's batch size; says what to change.
        """
        if not self._begun:
            self._begun = True
            self._begin(epoch)
        elif self._trial.running and (fault := self._accumulation_fault()):
            raise self._trial.fail(f"the batch size changed during the training: {fault}")
        self._epoch, self._batches, self._stopped = epoch, 0, False

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` if a step begins; checks the first batch of an epoch.

        Raises:
            TrainerSetupError: if the batch has another size.
        """
        if batch == 0 and self._trial.running and not self._trial.finished:
            self._check_batch()
        self._trial.steps.begin()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` if a step ends; stops in the middle of an epoch if the server ended the trial.

        Saves the state if `BackupAndRestore` has saved within the epoch: Keras repeats the epoch from its beginning,
        with the weights of the backup.
        """
        with self._lock:
            # Keras calls this in several threads.
            self._batches = max(self._batches, batch + 1)
        self._trained, self._stopped = True, bool(self.model.stop_training)
        if (batch + 1) % self._accumulated == 0:
            self._trial.steps.end()
        if self._trial.finished:
            self.model.stop_training = True
        if self._backed_up():
            self._save(self._epoch, self._before)
        if batch + 1 == self._steps and not (self._validates and self._reports(self._epoch)):
            self._save_end_of_epoch(logs or {})

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` that the steps of the epoch are over."""
        if self._trial.running:
            self._trial.steps.end_epoch()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the state in case that the process ends after another callback has saved the model."""
        if self._validates:
            self._save_end_of_epoch({f"val_{name}": value for name, value in (logs or {}).items()})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports the epoch if it ends with an evaluation, and stops the training if that decides the trial.

        Raises:
            TrainerSetupError: if the metric is not logged; names the metrics that are. Also if the number of steps has
                changed, or is 0.
        """
        if not self._trial.running:
            return
        self._trial.steps.end_epoch()
        if self._trial.finished:
            self.model.stop_training = True
            return
        batches = self._checked_batches(epoch)
        done = self._trial.steps_at_report + self._before + batches
        if self._reports(epoch):
            if self._metric not in (logs := logs or {}):
                raise self._missing_metric(epoch, logs)
            if self._trial.report(logs, done, self._interval, complete=not self._stopped):
                self.model.stop_training = True
        self._total += batches
        self._before = done - self._trial.steps_at_report
        self._backed_up()
        self._save(epoch + 1, self._before)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Ends the trial, and removes its state unless the trial can continue.

        Raises:
            TrainFailError: if the target was not reached.
            TrainerSetupError: if there was no epoch to train.
        """
        if not (self._begun or self._trial.finished or self.bso.last_epoch):
            raise self._trial.refuse(
                f"fit() had no epoch to train: it continues after the last of its epochs={self.params['epochs']}, as "
                "with the backup of a training that is over: remove the backup, or lower initial_epoch"
            )
        try:
            self._trial.end()
        finally:
            if self._states is not None and self.bso.trial.rank == 0 and not running_trial(self.bso).resumable:
                self._states.remove()

    @property
    def _interval(self) -> int | None:
        """Steps between two reports; None if unknown."""
        return None if self._steps is None else self._steps * self._every

    def _begin(self, epoch: int) -> None:
        trial, state, fit = self._trial, None, _Fit.of(self.model)
        if fit.callbacks is not None:
            fit.callbacks.callbacks = [*(each for each in fit.callbacks.callbacks if each is not self), self]
        if trial.finished:
            # Keras checks this after the first batch.
            self.model.stop_training = True
            trial.begin(Plan(0, None, math.inf))
            return
        if limit := _debugging():
            trial.skip(f"{limit} limits the training")
            return
        for fault in self._faults(fit, epoch):
            raise trial.refuse(fault)
        self._steps, self._size = _count(self.params["steps"]), fit.batch_size
        self._total = _iterations(self.model) * self._accumulated
        if self._states is not None and self._states.epochs:
            state = self._restored(self._states, epoch)
        earlier = self._earlier(epoch)
        done = (self._total or epoch * (self._steps or 1) or 1) if earlier else 0
        reports = self.params["epochs"] // self._every - epoch // self._every
        # Before the window opens: its first measurement should not be empty.
        beginning = EpochState(trial.state(), 0, self._interval, self._total, None)
        trial.begin(Plan(done, self._interval, self.bso.last_epoch + reports, earlier))
        _models.add(self.model)
        self._backed_up()
        if state is None:
            self._store(epoch, beginning)
        elif state.metric is not None:
            self._report_lost(state, state.metric)
            self._save(epoch, 0)

    def _faults(self, fit: _Fit, epoch: int) -> Iterator[str]:
        """Yields what makes the training another one than the trial's."""
        accumulated = self._accumulated
        for fault in (self._accumulation_fault(), self._size_fault(fit.batch_size)):
            if fault:
                yield fault
        if 0 in (fit.batches, self.params["steps"]):
            yield "the training data has no batch: there are fewer examples than the batch size, or none"
        steps = fit.steps_per_epoch
        if steps is not None and steps != fit.batches:
            if not self._trial.is_declared(steps / accumulated):
                yield (
                    f"steps_per_epoch={steps} is more examples the larger the batch size: set "
                    "steps_per_epoch=callback.steps(examples), the same number of examples in every launch, or omit it "
                    "for a pass over the data"
                )
            elif fit.batches is not None and fit.batches % steps:
                yield (
                    f"steps_per_epoch={steps} does not divide the {fit.batches} batches of the data, so that epochs "
                    "would differ: use a data set that repeats, or another number of examples for callback.steps(); "
                    "for one evaluation in several passes set validation_freq"
                )
        self._validates = fit.validates and self._metric.startswith("val_")
        if not self._validates:
            return
        if not isinstance(fit.validation_freq, int):
            yield (
                f"validation_freq={fit.validation_freq!r} evaluates at irregular intervals: set it to a number of "
                "epochs, such as 1"
            )
            return
        self._every = fit.validation_freq
        if epoch % self._every and not (self._states is not None and self._states.epochs):
            yield (
                f"initial_epoch={epoch} is not a multiple of validation_freq={self._every}, so that the first "
                "evaluation would follow fewer epochs than the others: change one of them"
            )

    def _accumulation_fault(self) -> str:
        accumulated = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        if accumulated == self._accumulated:
            return ""
        return (
            f"the optimizer has gradient_accumulation_steps={accumulated}, but the batch size of fit_batch_size() "
            f"is for {self._accumulated}: create the optimizer after fit_batch_size() with gradient_accumulation_"
            "steps=callback.gradient_accumulation_steps, or pass "
            f"batch_size=callback.fit_batch_size(gradient_accumulation_steps={accumulated}) to fit()"
        )

    def _size_fault(self, size: int | None) -> str:
        """Returns what is wrong with the size of a batch; empty if nothing is, or if it is unknown."""
        if size is None:
            return ""
        try:
            _SPLIT.check(self._trial.batch, devices=self._trial.ranks, steps=self._accumulated, size=size)
        except TrainerSetupError as error:
            return f"{error}: use batch_size=callback.fit_batch_size() in fit(), or for the data set"
        return ""

    def _check_batch(self) -> None:
        """Checks the size of the batch that is about to be trained, the first one of an epoch.

        Raises:
            TrainerSetupError: if it is not that of the trial, and the data are more than this batch.
        """
        size = _size_of_batch(self.model)
        if size is None and self._size is None:
            self._trial.warn_of_unknown_size()
        if not (fault := self._size_fault(size)) or (self._steps == 1 and not self._size_fault(self._size)):
            return
        if self._trained:
            raise self._trial.fail(f"the batch size changed during the training: {fault}")
        raise self._trial.refuse(fault)

    def _earlier(self, epoch: int) -> str:
        """Returns what shows that `fit()` continues an earlier training; empty if nothing does."""
        hint = "" if self._states is not None else " (checkpoint=folder keeps the state of a trial)"
        if epoch:
            return f"fit() begins with initial_epoch={epoch}{hint}"
        if self._total:
            return f"the optimizer of the model has done {self._total // self._accumulated} steps before fit(){hint}"
        return "the model was trained before, by an earlier fit()" if self.model in _models else ""

    def _restored(self, states: EpochStates, epoch: int) -> EpochState:
        """Continues the trial from the state of the epoch that `fit()` begins with."""
        trial, state = self._trial.bso.trial.name, states.at(epoch)
        if state is None:
            raise self._trial.refuse(
                f"{trial} can continue from epochs {states.epochs} of fit(), but fit() begins with epoch "
                f"{epoch}: pass the initial_epoch of the loaded model, or remove {states.path}, with the model's "
                "checkpoint, to train from the start"
            )
        if None not in (state.interval, self._interval) and state.interval != self._interval:
            raise self._trial.refuse(
                f"{trial} reports after every {state.interval} steps, but this fit() after every "
                f"{self._interval}: continue it with the same data, batch size and validation_freq, or remove "
                f"{states.path}, with the model's checkpoint, to train from the start"
            )
        # The model may have been saved within the epoch, or at its end.
        within = math.inf if self._steps is None else self._steps + self._accumulated
        if self._total and abs(self._total - state.total) > within:
            raise self._trial.refuse(
                f"fit() begins with epoch {epoch}, which follows {state.total} steps of {trial}, but the model "
                f"has done {self._total}: pass the initial_epoch that belongs to the loaded model"
            )
        if self.bso.last_epoch and not (epoch or self._total):
            log.warning(
                "fit() begins from the start, and with it %s after %d epochs; their cost is added to the trial's",
                *(trial, self.bso.last_epoch),
            )
        elif epoch and not self._total:
            log.warning(
                "fit() begins with epoch %d, but the optimizer of the model has done no step: check that the model was "
                "loaded, and with its optimizer",
                epoch,
            )
        self._trial.rewind(state.trial)
        self._before = state.steps
        return state

    def _report_lost(self, state: EpochState, metric: float) -> None:
        """Reports the epoch that an earlier process has trained and not reported, although the model was saved."""
        if math.isnan(metric):
            log.warning("epoch %d was trained before the resume, but its metric is lost", self.bso.last_epoch + 1)
        self._before = 0
        done = self._trial.steps_at_report + state.steps
        if self._trial.report({self._metric: metric}, done, state.interval):
            self.model.stop_training = True

    def _reports(self, epoch: int) -> bool:
        """Returns whether an epoch of Keras ends one of the trial."""
        return (epoch + 1) % self._every == 0

    def _checked_batches(self, epoch: int) -> int:
        """Returns the number of batches in an epoch of Keras that ends.

        Raises:
            TrainerSetupError: if the epoch had fewer steps than the others, and is not the last one.
        """
        batches = self._batches
        if self._steps is None:
            self._steps = None if self._stopped else batches or None
        elif self._steps <= batches < self._steps + self.model.steps_per_execution:
            # Keras counts the steps of an execution as if it were full.
            batches = self._steps
        elif batches < self._steps and not self.model.stop_training:
            raise self._trial.fail(
                f"epoch {epoch + 1} of fit() had {batches} batches instead of {self._steps}: the training data ran out "
                "or changed, so that its cost says nothing about the batch size of the trial; use a data set that "
                "repeats, or that has the same number of batches in every epoch"
            )
        return batches

    def _missing_metric(self, epoch: int, logs: Mapping[str, Any]) -> TrainerSetupError:
        if self._metric.startswith("val_") and not any(name.startswith("val_") for name in logs):
            return self._trial.fail(
                f"fit() did not evaluate the model after epoch {epoch + 1}, so there is no metric {self._metric!r}: "
                f"pass validation_data or validation_split to fit(), or use a metric of the training: {', '.join(logs)}"
            )
        return self._trial.missing_metric(logs)

    def _backed_up(self) -> bool:
        """Returns whether `BackupAndRestore` has saved since the last call."""
        if self._backup is None:
            return False
        try:
            newest = self._backup.stat().st_mtime_ns
        except OSError:
            return False
        before, self._backup_time = self._backup_time, newest
        return newest != before

    def _save_end_of_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Saves the state before the end of an epoch: a callback may save the model then, and the process may die."""
        metric = float(metrics.get(self._metric, math.nan)) if self._reports(self._epoch) else None
        self._save(self._epoch + 1, self._before + self._batches, metric)

    def _save(self, epoch: int, steps: int, metric: float | None = None) -> None:
        """Saves the state with which the trial continues if `fit()` continues at the beginning of an epoch."""
        if self._states is not None and self._trial.running and not self._trial.finished:
            total = self._total + steps - self._before
            self._store(epoch, EpochState(self._trial.state(), steps, self._interval, total, metric))

    def _store(self, epoch: int, state: EpochState) -> None:
        if self._states is not None and self.bso.trial.rank == 0:
            self._states.save(epoch, state)


def saved_state(checkpoint: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the newest state of a trial in a folder, for `bso.load_state_dict`; None if it has none.

    Raises:
        TrainerSetupError: if the folder has a file that is not one of states.
    """
    newest = EpochStates(checkpoint).newest
    return None if newest is None else newest.trial


class _Fit(NamedTuple):
    """What `fit()` was called with; None if unknown.

    Attributes:
        batch_size: the size of a batch, over all devices of this process.
        steps_per_epoch: the limit on the steps of an epoch.
        batches: the number of batches in a pass over the data.
        validates: whether there is data for validation.
        validation_freq: the epochs between two validations.
        callbacks: the list of its callbacks.
    """

    batch_size: int | None = None
    steps_per_epoch: int | None = None
    batches: int | None = None
    validates: bool = False
    validation_freq: object = 1
    callbacks: keras.callbacks.CallbackList | None = None

    @classmethod
    def of(cls, model: keras.Model) -> _Fit:
        """Reads the variables of the running `fit()`, as Keras passes callbacks only its epochs and steps."""
        variables = _variables_of_fit(model)
        if not variables:
            log.info(
                "this fit() is not that of Keras: its batch size, steps_per_epoch and validation_freq are not checked"
            )
            return cls()
        iterator = variables["epoch_iterator"]
        data = getattr(iterator, "data_adapter", None)
        return cls(
            batch_size_of(data) or batch_size_of(variables.get("x")),
            _count(getattr(iterator, "steps_per_epoch", None)),
            _count(getattr(data, "num_batches", None)),
            variables.get("validation_data") is not None,
            variables.get("validation_freq", 1),
            variables.get("callbacks"),
        )


def _variables_of_fit(model: keras.Model) -> Mapping[str, Any]:
    """Returns the variables of the running `fit()`; empty if it is not that of Keras."""
    for frame in callers():
        variables = frame.f_locals
        if frame.f_code.co_name == "fit" and variables.get("self") is model and "epoch_iterator" in variables:
            return variables
    return {}


def _size_of_batch(model: keras.Model) -> int | None:
    """Returns the examples in the batch that `fit()` is about to train; None if they are not in memory yet."""
    arrays = keras.tree.flatten(_variables_of_fit(model).get("data"))
    shape = getattr(arrays[0], "shape", None) if arrays else None
    return int(shape[0]) if shape else None


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, Integral) else None


def _iterations(model: keras.Model) -> int:
    """Returns the updates of the weights that the model's optimizer has done; 0 if it does not count them."""
    counted = getattr(model.optimizer, "iterations", None)
    # A variable of Keras, or with accumulated gradients a tensor of the backend.
    return 0 if counted is None else int(getattr(counted, "value", counted))


def _debugging() -> str:
    """Returns the setting of Keras that shortens every training; empty if there is none."""
    for name in ("max_epochs", "max_steps_per_epoch"):
        # Keras 3.12 and later.
        limit = getattr(keras.config, name, None)
        if limit is not None and limit() is not None:
            return f"keras.config.{name}()={limit()}"
    return ""
