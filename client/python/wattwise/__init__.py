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

Exceptions are in `wattwise.errors`. Each public name is imported on first use: `import wattwise` is fast, and the
server imports `wattwise.v1` and the modules that read files, variables and arguments.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from wattwise.decision import Decision as Decision
    from wattwise.integrations.fitting import fit_attempts as fit_attempts
    from wattwise.integrations.learning_rate import scaled_learning_rate as scaled_learning_rate
    from wattwise.integrations.learning_rate import scaled_steps as scaled_steps
    from wattwise.integrations.loader import data_loader as data_loader
    from wattwise.monitor import Monitor as Monitor
    from wattwise.monitor.amd_gpu import AmdSmiMonitor as AmdSmiMonitor
    from wattwise.monitor.combined import CombinedMonitor as CombinedMonitor
    from wattwise.monitor.estimate import EstimateMonitor as EstimateMonitor
    from wattwise.monitor.gpu import NvmlMonitor as NvmlMonitor
    from wattwise.monitor.rapl import RaplMonitor as RaplMonitor
    from wattwise.power.optimizer import PowerLimitOptimizer as PowerLimitOptimizer
    from wattwise.prices import eta_from_prices as eta_from_prices
    from wattwise.rpc.async_client import AsyncClient as AsyncClient
    from wattwise.rpc.client import Client as Client
    from wattwise.rpc.credentials import Credentials as Credentials
    from wattwise.rules import EndReason as EndReason
    from wattwise.rules import GpuGroup as GpuGroup
    from wattwise.spec import JobSpec as JobSpec
    from wattwise.training.optimizer import Attempt as Attempt
    from wattwise.training.optimizer import BatchSizeOptimizer as BatchSizeOptimizer
    from wattwise.training.trial import Trial as Trial

# gRPC's core reads this once, at the import of grpc. It would write lines of its own to stderr: at every fork while a
# stream is open, hence for every data-loader worker; about connections whose faults our errors name; and in a server's
# log with input of unknown clients, line breaks included.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# The modules of the names above, for imports at run time: type checkers read import statements alone.
_MODULES = {
    "AmdSmiMonitor": "wattwise.monitor.amd_gpu",
    "AsyncClient": "wattwise.rpc.async_client",
    "Attempt": "wattwise.training.optimizer",
    "BatchSizeOptimizer": "wattwise.training.optimizer",
    "Client": "wattwise.rpc.client",
    "CombinedMonitor": "wattwise.monitor.combined",
    "Credentials": "wattwise.rpc.credentials",
    "Decision": "wattwise.decision",
    "EndReason": "wattwise.rules",
    "EstimateMonitor": "wattwise.monitor.estimate",
    "GpuGroup": "wattwise.rules",
    "JobSpec": "wattwise.spec",
    "Monitor": "wattwise.monitor",
    "NvmlMonitor": "wattwise.monitor.gpu",
    "PowerLimitOptimizer": "wattwise.power.optimizer",
    "RaplMonitor": "wattwise.monitor.rapl",
    "Trial": "wattwise.training.trial",
    "data_loader": "wattwise.integrations.loader",
    "eta_from_prices": "wattwise.prices",
    "fit_attempts": "wattwise.integrations.fitting",
    "scaled_learning_rate": "wattwise.integrations.learning_rate",
    "scaled_steps": "wattwise.integrations.learning_rate",
}

__all__ = list(_MODULES)

if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            value: object = getattr(importlib.import_module(_MODULES[name]), name)
            globals()[name] = value
            return value
        if name[:1].isupper():
            errors = importlib.import_module("wattwise.errors")
            if getattr(getattr(errors, name, None), "__module__", "") == errors.__name__:
                # An import statement hides the message of an AttributeError.
                is_import = sys._getframe(1).f_code.co_name == "_handle_fromlist"  # noqa: SLF001 - inspect is slow to import
                kind = ImportError if is_import else AttributeError
                raise kind(f"{name} is in wattwise.errors: write `from wattwise.errors import {name}`", name=name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        # Without what this module imports for itself.
        own = {name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules}
        return sorted({*own, *__all__})
