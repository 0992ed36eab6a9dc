"""The wire contract: messages, enums, stubs and servicers of package `wattwise.v1`, generated from `protos/`.

What people and tools call is loaded when it is first used: a trainer never uses it, and should not wait for it.
"""

import importlib
from typing import TYPE_CHECKING

from wattwise.v1.batch_size_optimizer_pb2 import (
    EndTrialRequest,
    EndTrialResponse,
    GetNextBatchSizeRequest,
    GetNextBatchSizeResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterJobRequest,
    RegisterJobResponse,
    ReportResultRequest,
    ReportResultResponse,
    StreamResultsRequest,
    StreamResultsResponse,
)
from wattwise.v1.batch_size_optimizer_pb2_grpc import (
    BatchSizeOptimizerServicer,
    BatchSizeOptimizerStub,
    add_BatchSizeOptimizerServicer_to_server,
)
from wattwise.v1.error_reason_pb2 import (
    ERROR_REASON_INTERNAL,
    ERROR_REASON_INVALID_JOB_SPEC,
    ERROR_REASON_INVALID_REQUEST,
    ERROR_REASON_INVALID_RESULT,
    ERROR_REASON_JOB_DIFFERS,
    ERROR_REASON_JOB_NOT_FOUND,
    ERROR_REASON_NO_BATCH_SIZE_CONVERGED,
    ERROR_REASON_PERMISSION_DENIED,
    ERROR_REASON_SHUTTING_DOWN,
    ERROR_REASON_STORAGE_UNAVAILABLE,
    ERROR_REASON_TRIAL_NOT_FOUND,
    ERROR_REASON_UNAUTHENTICATED,
    ERROR_REASON_UNSPECIFIED,
    ErrorReason,
)
from wattwise.v1.job_pb2 import (
    POLICY_GTS,
    POLICY_PRUNING_GTS,
    POLICY_UNSPECIFIED,
    STAGE_MAB,
    STAGE_PRUNING,
    STAGE_UNSPECIFIED,
    Arm,
    GpuConfig,
    Job,
    JobSpec,
    Policy,
    Stage,
)
from wattwise.v1.trial_pb2 import (
    END_REASON_COMPLETED,
    END_REASON_COST_BOUND,
    END_REASON_ERROR,
    END_REASON_JOB_DELETED,
    END_REASON_LOST,
    END_REASON_MAX_EPOCHS,
    END_REASON_OUT_OF_MEMORY,
    END_REASON_PREEMPTED,
    END_REASON_TARGET_REACHED,
    END_REASON_UNSPECIFIED,
    TRIAL_STATUS_DISPATCHED,
    TRIAL_STATUS_FAILED,
    TRIAL_STATUS_SUCCEEDED,
    TRIAL_STATUS_UNSPECIFIED,
    TRIAL_TYPE_CONCURRENT,
    TRIAL_TYPE_EXPLORATION,
    TRIAL_TYPE_MAB,
    TRIAL_TYPE_UNSPECIFIED,
    Decision,
    EndReason,
    Measurement,
    TrainingResult,
    Trial,
    TrialId,
    TrialStatus,
    TrialType,
)

if TYPE_CHECKING:
    from wattwise.v1.job_admin_pb2 import (
        DeleteJobRequest,
        DeleteJobResponse,
        GetJobRequest,
        GetJobResponse,
        GetTrialRequest,
        GetTrialResponse,
        ListJobsRequest,
        ListJobsResponse,
        ListTrialsRequest,
        ListTrialsResponse,
        WatchJobRequest,
        WatchJobResponse,
    )
    from wattwise.v1.job_admin_pb2_grpc import (
        JobAdminServicer,
        JobAdminStub,
        add_JobAdminServicer_to_server,
    )

__all__ = [
    "END_REASON_COMPLETED",
    "END_REASON_COST_BOUND",
    "END_REASON_ERROR",
    "END_REASON_JOB_DELETED",
    "END_REASON_LOST",
    "END_REASON_MAX_EPOCHS",
    "END_REASON_OUT_OF_MEMORY",
    "END_REASON_PREEMPTED",
    "END_REASON_TARGET_REACHED",
    "END_REASON_UNSPECIFIED",
    "ERROR_REASON_INTERNAL",
    "ERROR_REASON_INVALID_JOB_SPEC",
    "ERROR_REASON_INVALID_REQUEST",
    "ERROR_REASON_INVALID_RESULT",
    "ERROR_REASON_JOB_DIFFERS",
    "ERROR_REASON_JOB_NOT_FOUND",
    "ERROR_REASON_NO_BATCH_SIZE_CONVERGED",
    "ERROR_REASON_PERMISSION_DENIED",
    "ERROR_REASON_SHUTTING_DOWN",
    "ERROR_REASON_STORAGE_UNAVAILABLE",
    "ERROR_REASON_TRIAL_NOT_FOUND",
    "ERROR_REASON_UNAUTHENTICATED",
    "ERROR_REASON_UNSPECIFIED",
    "POLICY_GTS",
    "POLICY_PRUNING_GTS",
    "POLICY_UNSPECIFIED",
    "STAGE_MAB",
    "STAGE_PRUNING",
    "STAGE_UNSPECIFIED",
    "TRIAL_STATUS_DISPATCHED",
    "TRIAL_STATUS_FAILED",
    "TRIAL_STATUS_SUCCEEDED",
    "TRIAL_STATUS_UNSPECIFIED",
    "TRIAL_TYPE_CONCURRENT",
    "TRIAL_TYPE_EXPLORATION",
    "TRIAL_TYPE_MAB",
    "TRIAL_TYPE_UNSPECIFIED",
    "Arm",
    "BatchSizeOptimizerServicer",
    "BatchSizeOptimizerStub",
    "Decision",
    "DeleteJobRequest",
    "DeleteJobResponse",
    "EndReason",
    "EndTrialRequest",
    "EndTrialResponse",
    "ErrorReason",
    "GetJobRequest",
    "GetJobResponse",
    "GetNextBatchSizeRequest",
    "GetNextBatchSizeResponse",
    "GetTrialRequest",
    "GetTrialResponse",
    "GpuConfig",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "Job",
    "JobAdminServicer",
    "JobAdminStub",
    "JobSpec",
    "ListJobsRequest",
    "ListJobsResponse",
    "ListTrialsRequest",
    "ListTrialsResponse",
    "Measurement",
    "Policy",
    "RegisterJobRequest",
    "RegisterJobResponse",
    "ReportResultRequest",
    "ReportResultResponse",
    "Stage",
    "StreamResultsRequest",
    "StreamResultsResponse",
    "TrainingResult",
    "Trial",
    "TrialId",
    "TrialStatus",
    "TrialType",
    "WatchJobRequest",
    "WatchJobResponse",
    "add_BatchSizeOptimizerServicer_to_server",
    "add_JobAdminServicer_to_server",
]

if not TYPE_CHECKING:
    # Hidden from type checkers, to which every misspelt name would look like one of ours.

    def __getattr__(name: str) -> object:
        if name in __all__:
            for module in ("job_admin_pb2", "job_admin_pb2_grpc"):
                loaded = importlib.import_module(f"{__name__}.{module}")
                if hasattr(loaded, name):
                    return globals().setdefault(name, getattr(loaded, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
