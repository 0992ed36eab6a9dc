"""Runs one command against its own real server: `python -m tests.serve_for COMMAND [ARGUMENT...]`.

`{server}` in the command is replaced by the server's address. The exit status is the command's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.live_server import LiveServer


def main(command: list[str]) -> int:
    """Run the command; return its exit status."""
    with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder)) as live:
        address = live.start()
        return subprocess.run([part.replace("{server}", address) for part in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
