"""Checks a client's example of a training loop against a hostile server.

    python -m tests.hostile_check PROGRAM [PATTERN]

The program is one for `tests.example_check`. The pattern selects what the server does; by default everything.
"""

from __future__ import annotations

import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hostile.behaviours import BEHAVIOURS
from tests.hostile.server import Behaviour
from tests.hostile.trials import faults, run
from tests.live_server import LiveServer

_AT_ONCE = 6
"""Most of the time the programs wait."""


def main(program: str, pattern: str = "") -> int:
    """Prints what the program does wrong; returns 1 if it does."""
    chosen = [behaviour for behaviour in BEHAVIOURS if re.search(pattern, behaviour.does)]

    def check(behaviour: Behaviour) -> bool:
        with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder)) as real:
            done = run([program], behaviour, real.start())
        found = list(faults(done, behaviour))
        if found:
            _say(f"{Path(program).name}: {behaviour}: {'; '.join(found)}\n{done.output[:2000]!a}")
        return not found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        passed = sum(pool.map(check, chosen))
    _say(f"{Path(program).name}: it survives {passed} of {len(chosen)} things that a hostile server does")
    return 0 if passed == len(chosen) else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
