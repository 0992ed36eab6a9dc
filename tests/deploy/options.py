"""The variables that a command of `wattwise` knows."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

RUN = "import sys; from wattwise.commands.main import main; sys.exit(main())"


@functools.cache
def options_of(command: str) -> frozenset[str]:
    """The names of the variables in the help of a command."""
    help_of = [sys.executable, "-c", RUN, command, "--help"]
    done = subprocess.run(help_of, capture_output=True, text=True, check=True, timeout=60)
    return frozenset(re.findall(r"\$(WATTWISE_[A-Z_]+)", done.stdout.replace("\n", "")))
