"""Wattwise: which batch size trains a recurring deep-learning job most cheaply.

    from wattwise import BatchSizeOptimizer, JobSpec

    spec = JobSpec(job_id_prefix="mnist", job_id="mnist-nightly", batch_sizes=[64, 128, 256], default_batch_size=128)
    bso = BatchSizeOptimizer("localhost:50051", spec)
    batch_size = bso.get_batch_size()
    bso.on_train_begin()
    for epoch in range(100):
        ...  # train an epoch, then evaluate it
        bso.on_evaluate(metric)
        if bso.training_finished:
            break

Every public name is loaded when it is first used, so that the import itself costs next to nothing.
"""

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattwise.callback import BatchSizeOptimizer
    from wattwise.client import Client
    from wattwise.credentials import Credentials
    from wattwise.errors import (
        CredentialsError,
        DeadlineError,
        InvalidAddressError,
        InvalidJobSpecError,
        InvalidRequestError,
        InvalidResultError,
        JobDiffersError,
        JobNotFoundError,
        MetricTypeError,
        MonitorError,
        NoBatchSizeConvergedError,
        NoDriverError,
        OperationOrderError,
        PermissionDeniedError,
        ResourceExhaustedError,
        ServerError,
        ServerUnavailableError,
        TrainFailError,
        TrialNotFoundError,
        UnauthenticatedError,
        UnsupportedCallError,
        UntrustedServerError,
        Violation,
        WattwiseError,
    )
    from wattwise.monitor import EstimateMonitor, Monitor, NvmlMonitor, RaplMonitor
    from wattwise.spec import GpuConfig, JobSpec

    __version__: str

# gRPC reads this once, early. Its lesser messages would come at every fork while a stream is open, thus
# for every data-loader worker; and in a server's log they repeat what strangers send, line breaks included.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__all__ = [
    "BatchSizeOptimizer",
    "Client",
    "Credentials",
    "CredentialsError",
    "DeadlineError",
    "EstimateMonitor",
    "GpuConfig",
    "InvalidAddressError",
    "InvalidJobSpecError",
    "InvalidRequestError",
    "InvalidResultError",
    "JobDiffersError",
    "JobNotFoundError",
    "JobSpec",
    "MetricTypeError",
    "Monitor",
    "MonitorError",
    "NoBatchSizeConvergedError",
    "NoDriverError",
    "NvmlMonitor",
    "OperationOrderError",
    "PermissionDeniedError",
    "RaplMonitor",
    "ResourceExhaustedError",
    "ServerError",
    "ServerUnavailableError",
    "TrainFailError",
    "TrialNotFoundError",
    "UnauthenticatedError",
    "UnsupportedCallError",
    "UntrustedServerError",
    "Violation",
    "WattwiseError",
    "__version__",
]

_OUTSIDE_ERRORS = {
    "BatchSizeOptimizer": "wattwise.callback",
    "Client": "wattwise.client",
    "Credentials": "wattwise.credentials",
    "EstimateMonitor": "wattwise.monitor.estimate",
    "GpuConfig": "wattwise.spec",
    "JobSpec": "wattwise.spec",
    "Monitor": "wattwise.monitor",
    "NvmlMonitor": "wattwise.monitor.nvml",
    "RaplMonitor": "wattwise.monitor.rapl",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, to which every misspelt name would look like one of ours.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("wattwise")
        value: object = getattr(importlib.import_module(_OUTSIDE_ERRORS.get(name, "wattwise.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
