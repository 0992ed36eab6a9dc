"""The labels of a launch: what it says about itself, for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from wattwise.rules import MAX_LABELS, label_fault

from wattwise_server.errors import Violation

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def label_faults(labels: Mapping[str, str]) -> list[Violation]:
    """Returns what is wrong with labels."""
    if len(labels) > MAX_LABELS:
        return [Violation("labels", f"has {len(labels)} labels; send at most {MAX_LABELS}")]
    return [Violation("labels", fault) for label in labels.items() if (fault := label_fault(*label))]
