"""`client.json`: what a client in a command tells `wattwise run`, in the trial's folder `WATTWISE_LOG_DIR`.

    {"joined": true, "limit_watts_per_gpu": 175.0}

`joined` is true once the client has joined the driver's trial: the driver then leaves measuring and reporting to it.
`limit_watts_per_gpu` is absent until a `PowerLimitOptimizer` has set a limit. The file is always replaced as a whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wattwise.files import SMALL, FileError, is_number, read_json, replacing

CLIENT_FILE = "client.json"
_REMEDY = "it is ignored; let Wattwise alone write the file"


class ClientFile(NamedTuple):
    """The contents of `client.json`.

    Attributes:
        joined: as in the file.
        limit_watts_per_gpu: as in the file; None if it is absent.
        fault: why the file, or a field of it, is not used; empty if there is no fault.
    """

    joined: bool = False
    limit_watts_per_gpu: float | None = None
    fault: str = ""

    @classmethod
    def read(cls, folder: Path) -> ClientFile:
        """Reads the file; a missing or invalid file, or field, is like one that was never written."""
        path = folder / CLIENT_FILE
        try:
            found = read_json(path, SMALL, within=folder)
        except FileNotFoundError:
            return cls()
        except FileError as error:
            return cls(fault=str(error))
        if not isinstance(found, dict):
            return cls(fault=str(FileError(path, "is not a JSON object", _REMEDY)))
        joined, watts = found.get("joined", False), power_limit_of(found)
        wrong = [] if isinstance(joined, bool) else [f"joined {joined!r:.80}, which is neither true nor false"]
        wrong += [power_fault_of(found)] if power_fault_of(found) else []
        fault = str(FileError(path, f"has {wrong[0]}", _REMEDY)) if wrong else ""
        return cls(joined is True, watts, fault)

    def write(self, folder: Path) -> None:
        """Replaces the file; a folder that cannot be written must not disturb the training."""
        content: dict[str, object] = {"joined": self.joined}
        if self.limit_watts_per_gpu is not None:
            content["limit_watts_per_gpu"] = self.limit_watts_per_gpu
        with suppress(OSError), replacing(folder / CLIENT_FILE, f"{{}}.{os.getpid()}") as file:
            file.write(f"{json.dumps(content)}\n".encode())


def power_limit_of(document: Mapping[str, object]) -> float | None:
    """Returns the field `limit_watts_per_gpu` of a JSON object; None if it is missing or not a power."""
    limit = document.get("limit_watts_per_gpu")
    return float(limit) if is_number(limit) and 0 < limit < math.inf else None


def power_fault_of(document: Mapping[str, object]) -> str:
    """Returns what is wrong with the field; empty if it is missing or a power."""
    limit = document.get("limit_watts_per_gpu")
    if limit is None or power_limit_of(document) is not None:
        return ""
    return f"limit_watts_per_gpu {limit!r:.80}, which is not a number of watts"
