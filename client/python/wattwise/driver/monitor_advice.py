"""What monitors advise programs, said to whoever writes a job file."""

from __future__ import annotations

import re

from wattwise.monitor.gpu import INSTEAD

_ESTIMATE = 'monitor = "estimate:150" (the watts that training draws)'
_ADVICE = {
    re.escape(INSTEAD): 'give another monitor under [run]: monitor = "rapl" for training on the processor, '
    f"or {_ESTIMATE}",
    r"pass monitor=EstimateMonitor\([^)]*\)( instead)?": f"write under [run] {_ESTIMATE}",
    r"give the job gpu=GpuConfig\([^)]*\)": "give max_power_watts, number_of_gpus and gpu_model under [job.gpu]",
    "gpu_indices or CUDA_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES",
}


def for_job_file(message: str) -> str:
    """A monitor's message, with keys of the job file where it names arguments of Python's."""
    for to_programs, to_job_files in _ADVICE.items():
        message = re.sub(to_programs, to_job_files, message)
    return message
