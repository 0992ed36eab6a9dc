"""The exceptions that this library raises, and its logger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.decision import Decision

T = TypeVar("T")

log = logging.getLogger("wattwise")
"""The logger of the whole client package."""


class _Unclaimed(logging.Handler):
    """Writes to stderr what no handler of the program would get, with the name of this library."""

    @property
    def needed(self) -> bool:
        """Whether the program has set up no handler for these lines."""
        own = any(handler is not self for handler in log.handlers)
        return not (own or (log.propagate and log.parent is not None and log.parent.hasHandlers()))

    def emit(self, record: logging.LogRecord) -> None:
        if self.needed:
            # A new one each time: stderr may have been replaced.
            stderr = logging.StreamHandler()
            stderr.setFormatter(logging.Formatter("wattwise: %(message)s"))
            stderr.emit(record)


_unclaimed = _Unclaimed()
log.addHandler(_unclaimed)


def announce(message: str, *args: object) -> None:
    """Logs one of the few lines at level INFO that a program sees without configuring logging.

    If no handler would get the line, it is written to stderr, unless the level of the logger is above INFO.
    """
    if not _unclaimed.needed:
        log.info(message, *args, stacklevel=2)
    elif log.level <= logging.INFO and not log.disabled and log.manager.disable < logging.INFO:
        record = log.makeRecord(log.name, logging.INFO, __file__, 0, message, args, None)
        if log.filter(record):
            _unclaimed.handle(record)


_warned_of: set[str] = set()


def warn_once(message: str) -> None:
    """Logs a warning, unless this process has logged the same one before."""
    if message not in _warned_of:
        _warned_of.add(message)
        log.warning("%s", message, stacklevel=2)


class Violation(NamedTuple):
    """A fault in one field of a request."""

    field: str
    description: str


class WattwiseError(Exception):
    """Base class of all exceptions of this library.

    Instances can be pickled: rank 0 of a distributed training sends them to the other ranks. An error of a server whose
    `reason` is newer than this library has the class of its gRPC status.

    Attributes:
        reason: name of the `v1.ErrorReason`, such as "ERROR_REASON_JOB_DIFFERS"; empty if there is none.
        violations: the faults of the request, or what differs, by field; empty if the error is not about a field. Of
            very many, a last one without a field says how many more there are.
        metadata: details that the server sent; `v1.ErrorReason` documents the keys of each reason.
        problem: the message without advice.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.problem = message
        self.reason = reason
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})

    def with_message(self, message: str) -> Self:
        """Returns an error like this one with another message."""
        return type(self)(message, reason=self.reason, violations=self.violations, metadata=self.metadata)

    @property
    def call_id(self) -> str:
        """The id of the failed call in the server's log; empty if the error is not the server's."""
        return self.metadata.get("call_id", "")

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.metadata.get("retryable") == "true"


class InvalidJobSpecError(WattwiseError):
    """The configuration of a job or of its policy is invalid; `violations` lists the faults."""

    @classmethod
    def of(cls, faults: Sequence[Violation]) -> InvalidJobSpecError:
        """Returns the error for faults that the client finds, like the server's."""
        listed = "; ".join(f"{fault.field}: {fault.description}" for fault in faults)
        return cls(f"invalid job: {listed}", reason="ERROR_REASON_INVALID_JOB_SPEC", violations=faults)


class JobDiffersError(WattwiseError):
    """A job with this id exists and has another configuration; `violations` lists what differs."""


class JobNotFoundError(WattwiseError):
    """No job has this id."""


class TrialNotFoundError(WattwiseError):
    """The job has no such trial: it never had one, or the server has lost it with its database."""


class TrialDeletedError(WattwiseError):
    """The trial was deleted with its job: stop training, and neither import the trial nor register the job again."""


class NoBatchSizeLeftError(WattwiseError):
    """No batch size is left to try: the message says what failed, what to change, and how to begin the search again.

    Its `metadata` lists the batch sizes by cause.
    """


class NotPossibleNowError(WattwiseError):
    """A valid call is not possible in the present state; the message says what to change first."""


class InvalidResultError(WattwiseError):
    """A reported result has invalid numbers or contradicts an earlier one; the server has stored nothing of it."""


class MetricTypeError(WattwiseError, TypeError):
    """A metric is not a number."""


class InvalidRequestError(WattwiseError):
    """A field of a request is missing or invalid, or the request cannot be read; `violations` lists the faults."""


class ServerUnavailableError(WattwiseError):
    """The server is unreachable or temporarily unable to answer; the message names its address and the cause."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.metadata.get("retryable", "true") == "true"


class DeadlineError(ServerUnavailableError):
    """The server did not answer in time."""

    @property
    def retryable(self) -> bool:
        """False: the call has used up its deadline."""
        return False


class UntrustedServerError(ServerUnavailableError):
    """The server's certificate could not be verified, or the server does not use TLS; the message gives the cause."""

    @property
    def retryable(self) -> bool:
        """False: the certificates must be corrected first."""
        return False


class CredentialsError(WattwiseError):
    """A token or certificate of the client cannot be used; the message says which one and what to do."""


class InvalidAddressError(WattwiseError):
    """The server's address is malformed."""


class UnauthenticatedError(WattwiseError):
    """The server requires a token, or does not accept the one that was sent."""


class PermissionDeniedError(WattwiseError):
    """The caller's token does not permit the call, or not for this job."""


class ResourceExhaustedError(WattwiseError):
    """A limit of the server is reached; `metadata` says which, if the server does."""


class UnsupportedCallError(WattwiseError):
    """The server, or a proxy in front of it, does not implement the call."""


class ServerError(WattwiseError):
    """The server failed; its log has the details."""


class InvalidAnswerError(ServerError):
    """The server's answer is incomplete, unusable or about something else: the server is faulty, or another one."""


class InvalidArgumentError(WattwiseError, ValueError):
    """An argument, or the variable that replaces it, is invalid; the message says what to pass."""


class ResumeError(WattwiseError):
    """The trial of a checkpoint cannot be resumed; the message says why and what to do instead."""


class OperationOrderError(WattwiseError):
    """A method was called too early, too late or in the wrong process; the message says what to call instead."""


class NoDriverError(WattwiseError):
    """`wattwise run` did not start this process, or the environment variables that it sets are wrong."""


class Remedy(Enum):
    """What helps against a `MonitorError`; the value says it to a program's author."""

    OTHER_MONITOR = (
        "pass another monitor instead: monitor=RaplMonitor() for training on the processor, "
        "monitor=EstimateMonitor(watts=...) for a known power (both in wattwise.monitor), or a ZeusMonitor"
    )
    ESTIMATE = "pass monitor=EstimateMonitor(watts=...)"
    GPU_GROUP = "set gpu=GpuGroup(gpu_model=..., count=..., max_power_watts_per_gpu=...) in the job"
    SELECT_GPUS = "select other GPUs with gpu_indices or CUDA_VISIBLE_DEVICES"


class MonitorError(WattwiseError):
    """Energy cannot be measured on this machine; the message says what to do.

    Args:
        problem: what is wrong.
        remedies: what helps; any one of them is enough.

    Attributes:
        remedies: as given.
    """

    def __init__(self, problem: str, *remedies: Remedy) -> None:
        super().__init__(problem, advice=", or ".join(remedy.value for remedy in remedies))
        self.remedies = remedies


class NoDeviceError(MonitorError):
    """This machine has no device of the kind that a monitor measures, or shows none to this process."""


class ImplausibleError(MonitorError):
    """A monitor has measured what cannot be true; the message says what."""


class TrainerSetupError(InvalidArgumentError):
    """A trainer's configuration does not fit its trial; the message says what to change."""


class TrainFailError(WattwiseError):
    """Training ended and the model did not reach its target.

    Attributes:
        decision: the decision that ended it, with the server's message.
    """

    def __init__(self, message: str, decision: Decision | None = None) -> None:
        from wattwise.decision import Decision  # noqa: PLC0415 - takes longer to import than all errors

        super().__init__(message)
        self.decision = decision or Decision(stop_train=True, message=message)

    @classmethod
    def of(cls, decision: Decision | None) -> TrainFailError | None:
        """Returns the error for a decision that ended the training without its target; None for any other decision."""
        if decision is None or not decision.stop_train or decision.target_reached:
            return None
        return cls(f"training is over and the target was not reached: {decision.message}", decision)


_PUBLIC = ("__init__", "__enter__", "__exit__")
_GENERATOR = 0x20
"""The flag of a generator's code, as of `inspect.CO_GENERATOR`, whose module takes long to import."""


def short_tracebacks(cls: type[T]) -> type[T]:
    """Changes a class so that its public methods end the tracebacks of their errors.

    Users see their own line and the message. The frames below, with the errors that caused the error, are logged at
    level DEBUG.
    """
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _PUBLIC:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, _shortened(member))
        elif isinstance(member, classmethod):
            setattr(cls, name, classmethod(_shortened(member.__func__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_shortened(member.fget), member.fset, doc=member.__doc__))
    return cls


def _shortened(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except WattwiseError as error:
            raise _without_frames(error) from None

    @wraps(function)
    def iterate(*args: Any, **options: Any) -> Any:
        try:
            return (yield from function(*args, **options))
        except WattwiseError as error:
            raise _without_frames(error) from None

    return iterate if function.__code__.co_flags & _GENERATOR else call


def _without_frames(error: WattwiseError) -> WattwiseError:
    log.debug("raised to the trainer: %s", error, exc_info=error, stack_info=True)
    return error.with_traceback(None)
