"""What a launch says about itself, for people who look at its trial."""

from __future__ import annotations

import os
import socket

from wattwise.errors import log
from wattwise.rules import MAX_LABELS, label_fault, label_of

VARIABLE = "WATTWISE_LABELS"


def launch_labels() -> dict[str, str]:
    """Returns a launch's labels: its host, its batch job, and those of `WATTWISE_LABELS`, "key=value,key=value".

    A label that the server would refuse is left out with a warning, because no launch should fail for a label.
    """
    labels = {"host": socket.gethostname()}
    if job := os.environ.get("SLURM_JOB_ID"):
        labels["slurm_job_id"] = job
    for part in filter(None, (part.strip(" ") for part in os.environ.get(VARIABLE, "").split(","))):
        if (label := label_of(part)) is None:
            log.warning("%s: %r is no label and is ignored: write key=value, separated by commas", VARIABLE, part)
        elif label[0] not in labels and len(labels) == MAX_LABELS:
            log.warning("%s: %r is ignored: a launch has at most %d labels", VARIABLE, part, MAX_LABELS)
        else:
            labels.update([label])
    return {key: value for key, value in labels.items() if label_fault(key, value) is None}
