"""Wattwise learns which batch size trains a recurring deep-learning job at the lowest cost.

    from wattwise import BatchSizeOptimizer, JobSpec

    spec = JobSpec(
        job_id="mnist-nightly", batch_sizes=[64, 128], default_batch_size=64, target_metric=0.98
    )
    bso = BatchSizeOptimizer("localhost:50051", spec)
    for attempt in bso.attempts():
        ...  # build a model, and a loader with attempt.batch_size
        for epoch in attempt.epochs():
            ...  # train an epoch, then evaluate it
            attempt.on_evaluate(metric)

Each public name is imported on first use: `import wattwise` is fast, and the server imports `wattwise.v1` and the
modules that read files, variables and arguments.
"""

import importlib
import os
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from wattwise.errors import (
        CredentialsError,
        DeadlineError,
        InvalidAddressError,
        InvalidAnswerError,
        InvalidArgumentError,
        InvalidJobSpecError,
        InvalidRequestError,
        InvalidResultError,
        JobDiffersError,
        JobNotFoundError,
        MetricTypeError,
        MonitorError,
        NoBatchSizeLeftError,
        NoDriverError,
        NotPossibleNowError,
        OperationOrderError,
        PermissionDeniedError,
        PowerProfileError,
        ResourceExhaustedError,
        ResumeError,
        ServerError,
        ServerUnavailableError,
        TrainerSetupError,
        TrainFailError,
        TrialDeletedError,
        TrialNotFoundError,
        UnauthenticatedError,
        UnsupportedCallError,
        UntrustedServerError,
        Violation,
        WattwiseError,
    )
    from wattwise.integrations.fitting import fit_attempts
    from wattwise.integrations.learning_rate import scaled_learning_rate, scaled_steps
    from wattwise.integrations.loader import data_loader
    from wattwise.monitor import AmdSmiMonitor, CombinedMonitor, EstimateMonitor, Monitor, NvmlMonitor, RaplMonitor
    from wattwise.power.optimizer import PowerLimitOptimizer
    from wattwise.prices import eta_from_prices
    from wattwise.rpc.client import Client
    from wattwise.rpc.credentials import Credentials
    from wattwise.spec import GpuGroup, JobSpec
    from wattwise.training.attempts import Attempt
    from wattwise.training.optimizer import BatchSizeOptimizer

# gRPC's core reads this once, at the import of grpc. It would write lines of its own to stderr: at every fork while a
# stream is open, hence for every data-loader worker; about connections whose faults our errors name; and in a server's
# log with input of unknown clients, line breaks included.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = [
    "AmdSmiMonitor",
    "Attempt",
    "BatchSizeOptimizer",
    "Client",
    "CombinedMonitor",
    "Credentials",
    "CredentialsError",
    "DeadlineError",
    "EstimateMonitor",
    "GpuGroup",
    "InvalidAddressError",
    "InvalidAnswerError",
    "InvalidArgumentError",
    "InvalidJobSpecError",
    "InvalidRequestError",
    "InvalidResultError",
    "JobDiffersError",
    "JobNotFoundError",
    "JobSpec",
    "MetricTypeError",
    "Monitor",
    "MonitorError",
    "NoBatchSizeLeftError",
    "NoDriverError",
    "NotPossibleNowError",
    "NvmlMonitor",
    "OperationOrderError",
    "PermissionDeniedError",
    "PowerLimitOptimizer",
    "PowerProfileError",
    "RaplMonitor",
    "ResourceExhaustedError",
    "ResumeError",
    "ServerError",
    "ServerUnavailableError",
    "TrainFailError",
    "TrainerSetupError",
    "TrialDeletedError",
    "TrialNotFoundError",
    "UnauthenticatedError",
    "UnsupportedCallError",
    "UntrustedServerError",
    "Violation",
    "WattwiseError",
    "__version__",
    "data_loader",
    "eta_from_prices",
    "fit_attempts",
    "scaled_learning_rate",
    "scaled_steps",
]

# Where each name is defined, if not in wattwise.errors.
_MODULES = {
    "AmdSmiMonitor": "wattwise.monitor.amd_gpu",
    "Attempt": "wattwise.training.attempts",
    "BatchSizeOptimizer": "wattwise.training.optimizer",
    "Client": "wattwise.rpc.client",
    "CombinedMonitor": "wattwise.monitor.combined",
    "Credentials": "wattwise.rpc.credentials",
    "EstimateMonitor": "wattwise.monitor.estimate",
    "GpuGroup": "wattwise.spec",
    "JobSpec": "wattwise.spec",
    "Monitor": "wattwise.monitor",
    "NvmlMonitor": "wattwise.monitor.gpu",
    "PowerLimitOptimizer": "wattwise.power.optimizer",
    "RaplMonitor": "wattwise.monitor.rapl",
    "data_loader": "wattwise.integrations.loader",
    "eta_from_prices": "wattwise.prices",
    "fit_attempts": "wattwise.integrations.fitting",
    "scaled_learning_rate": "wattwise.integrations.learning_rate",
    "scaled_steps": "wattwise.integrations.learning_rate",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(_MODULES.get(name, "wattwise.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
