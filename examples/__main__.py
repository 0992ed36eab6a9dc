"""Runs every example with its own server, and fails unless each succeeds in time and prints its batch size and why."""

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

from examples.digits.servers import one_on_sqlite

FOLDER = Path(__file__).parent
SCRIPTS = (
    "smallest.py",
    "plain_pytorch.py",
    "huggingface.py",
    "accelerate_digits.py",
    "trl_sft.py",
    "image_classifier.py",
    "lightning_digits.py",
    "keras_digits.py",
    "characters.py",
)
AT_MOST_SECONDS = 60.0
_CHOICE = re.compile(r"^Batch size \d+: \S", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the examples in turn; returns the exit status."""
    args = _arguments(argv)
    failed = []
    with tempfile.TemporaryDirectory(prefix="wattwise-examples-") as name, one_on_sqlite(Path(name)) as servers:
        for script in args.scripts or SCRIPTS:
            fault = _fault(script, servers.address, args.seconds, f"{name}/spool")
            if fault:
                failed.append(f"{script} {fault}")
    print("\n" + ("; ".join(failed) or "every example reached its target"))
    return 1 if failed else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="the examples to run (default: all)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=AT_MOST_SECONDS,
        metavar="N",
        help="time limit for each example (default: %(default)g)",
    )
    return parser.parse_args(argv)


def _fault(script: str, server: str, at_most_seconds: float, spool: str) -> str | None:
    """Runs an example; returns how it failed, if it did."""
    print(f"\n$ WATTWISE_SERVER={server} python examples/{script}", flush=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            (sys.executable, FOLDER / script),
            check=False,
            timeout=at_most_seconds,
            # On a busy machine, threads that wait for each other are many times slower than a single one.
            env={"OMP_NUM_THREADS": "1", **os.environ, "WATTWISE_SERVER": server, "WATTWISE_SPOOL": spool},
            stdout=subprocess.PIPE,
        )
    except subprocess.TimeoutExpired as timeout:
        print((timeout.stdout or b"").decode(errors="replace"), end="")
        return f"did not end within {at_most_seconds:g} s"
    output = done.stdout.decode(errors="replace")
    print(f"{output}({time.monotonic() - began:.0f} s)", flush=True)
    if done.returncode:
        return f"exited with status {done.returncode}"
    return None if _CHOICE.search(output) else "did not print its batch size and the reason"


if __name__ == "__main__":
    sys.exit(main())
