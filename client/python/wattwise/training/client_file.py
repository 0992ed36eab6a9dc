"""`client.json`: what a client in a command tells `wattwise run`, in the trial's folder `WATTWISE_LOG_DIR`.

    {"joined": true, "power_limit_watts": 175.0}

`joined` is true once the client has joined the driver's trial: the driver then leaves measuring and reporting to it.
`power_limit_watts` is absent until a `PowerLimitOptimizer` has set a limit. The file is always replaced as a whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CLIENT_FILE = "client.json"


class ClientFile(NamedTuple):
    """The contents of `client.json`."""

    joined: bool = False
    power_limit_watts: float | None = None

    @classmethod
    def read(cls, folder: Path) -> ClientFile:
        """Reads the file; a missing or invalid file, or field, is like one that was never written."""
        try:
            found = json.loads((folder / CLIENT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(found, dict):
            return cls()
        return cls(found.get("joined") is True, power_limit_of(found))

    def write(self, folder: Path) -> None:
        """Replaces the file; a folder that cannot be written must not disturb the training."""
        content: dict[str, object] = {"joined": self.joined}
        if self.power_limit_watts is not None:
            content["power_limit_watts"] = self.power_limit_watts
        draft = folder / f"{CLIENT_FILE}.{os.getpid()}"
        with suppress(OSError):
            draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
            draft.replace(folder / CLIENT_FILE)


def power_limit_of(document: Mapping[str, object]) -> float | None:
    """The field `power_limit_watts` of a JSON object; None if it is missing or not a power."""
    limit = document.get("power_limit_watts")
    if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < math.inf:
        return float(limit)
    return None
