"""Runs the example of every trainer against a server of its own, and fails if one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.digits.__main__ import serving

FOLDER = Path(__file__).parent
SCRIPTS = ("smallest.py", "plain_pytorch.py", "huggingface.py", "lightning_digits.py", "keras_digits.py")
HANGS_SECONDS = 600.0
"""What takes minutes hangs, even on a busy machine; each takes well under one."""


def main() -> int:
    """Runs them one after the other; returns the exit status."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="wattwise-examples-") as name, serving(Path(name)) as server:
        for script in SCRIPTS:
            print(f"\n$ WATTWISE_SERVER={server} python examples/{script}", flush=True)
            began = time.monotonic()
            environment = {**os.environ, "WATTWISE_SERVER": server}
            command = (sys.executable, FOLDER / script)
            done = subprocess.run(command, check=False, timeout=HANGS_SECONDS, env=environment)
            print(f"({time.monotonic() - began:.0f} s)", flush=True)
            if done.returncode:
                failed.append(f"{script} exited with status {done.returncode}")
    print("\n" + ("; ".join(failed) or "every example reached its target"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
