"""Runs the example of every trainer against a server of its own, and fails if one of them does not do what it should.

Each has to end well, in time, and to say which batch size was chosen and why.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from examples.digits.__main__ import serving

FOLDER = Path(__file__).parent
SCRIPTS = ("smallest.py", "plain_pytorch.py", "huggingface.py", "lightning_digits.py", "keras_digits.py")
AT_MOST_SECONDS = 60.0
_CHOICE = re.compile(r"^Batch size \d+: \S", re.MULTILINE)


def main(given: Sequence[str] | None = None) -> int:
    """Runs them one after the other; returns the exit status."""
    told = _arguments(given)
    failed = []
    with tempfile.TemporaryDirectory(prefix="wattwise-examples-") as name, serving(Path(name)) as server:
        for script in told.scripts or SCRIPTS:
            fault = _fault(script, server, told.seconds)
            if fault:
                failed.append(f"{script} {fault}")
    print("\n" + ("; ".join(failed) or "every example reached its target"))
    return 1 if failed else 0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="default: every trainer's")
    parser.add_argument(
        "--seconds",
        type=float,
        default=AT_MOST_SECONDS,
        metavar="N",
        help="how long one may take; give more on a slow machine (default: %(default)g)",
    )
    return parser.parse_args(given)


def _fault(script: str, server: str, at_most_seconds: float) -> str | None:
    """Runs one; returns what is wrong with it, if anything."""
    print(f"\n$ WATTWISE_SERVER={server} python examples/{script}", flush=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            (sys.executable, FOLDER / script),
            check=False,
            timeout=at_most_seconds,
            # Threads that wait for each other on a busy machine take many times as long as one does.
            env={"OMP_NUM_THREADS": "1", **os.environ, "WATTWISE_SERVER": server},
            stdout=subprocess.PIPE,
        )
    except subprocess.TimeoutExpired as late:
        print((late.stdout or b"").decode(errors="replace"), end="")
        return f"was not over after {at_most_seconds:g} s"
    said = done.stdout.decode(errors="replace")
    print(f"{said}({time.monotonic() - began:.0f} s)", flush=True)
    if done.returncode:
        return f"exited with status {done.returncode}"
    return None if _CHOICE.search(said) else "did not say which batch size was chosen, and why"


if __name__ == "__main__":
    sys.exit(main())
