"""Power failures: only synced data of the server's files is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.shims import build_shim
from tests.faults.soak import number
from tests.faults.test_kills import kill_again_and_again
from tests.live_server import LiveServer

pytestmark = pytest.mark.thorough


class Disk:
    """What a power failure would leave of a server's folder."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        self._kept = kept
        self._synced()

    def _synced(self) -> None:
        """All that is in the folder is on the disk."""
        shutil.rmtree(self._kept, ignore_errors=True)
        for part in ("content", "names"):
            (self._kept / part).mkdir(parents=True)
        for path in self._folder.iterdir():
            shutil.copyfile(path, self._kept / "content" / path.name)
            (self._kept / "names" / path.name).touch()

    def lose_power(self) -> None:
        """The folder as it comes up again."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for name in (self._kept / "names").iterdir():
            content = self._kept / "content" / name.name
            shutil.copyfile(content if content.exists() else name, self._folder / name.name)
        self._synced()


def cut_again_and_again(folder: Path, cuts: int, workers: int) -> None:
    """Runs the load on a server that loses power repeatedly."""
    home = folder / "server"
    home.mkdir()
    server = LiveServer(home)
    server.log = folder / "server.log"
    server.environment = {
        "LD_PRELOAD": str(build_shim("power", folder)),
        "POWER_FROM": str(home.resolve()),
        "POWER_TO": str(folder / "kept"),
    }
    disk = Disk(home, folder / "kept")
    try:
        server.start()
        kill_again_and_again(server, cuts, workers, disk.lose_power)
    finally:
        server.close()


def test_a_few_power_cuts(tmp_path: Path) -> None:
    """After each of three power failures under load, everything acknowledged was synced, and nothing is incomplete."""
    cut_again_and_again(tmp_path, cuts=3, workers=12)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_power_cuts(tmp_path: Path) -> None:
    """The same after each of forty power failures."""
    cut_again_and_again(tmp_path, cuts=number(40, short=8), workers=24)
