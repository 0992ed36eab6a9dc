"""The labels of a launch: what it says about itself, for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from wattwise.rules import MAX_LABEL_KEY_LENGTH, MAX_LABELS, identifier_fault

from wattwise_server.errors import Violation

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def label_faults(labels: Mapping[str, str]) -> list[Violation]:
    """Returns what is wrong with labels."""
    if len(labels) > MAX_LABELS:
        return [Violation("labels", f"has {len(labels)} labels; send at most {MAX_LABELS}")]
    faults = []
    for key, value in labels.items():
        if not 1 <= len(key) <= MAX_LABEL_KEY_LENGTH:
            faults.append(f"has a key of {len(key)} characters; use 1 to {MAX_LABEL_KEY_LENGTH}")
        faults += (f"has a text that {fault}" for fault in map(identifier_fault, (key, value)) if fault)
    return [Violation("labels", fault) for fault in faults]
