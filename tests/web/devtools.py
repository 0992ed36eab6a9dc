"""A Chromium of which only numbers are asked.

What Playwright listens to, such as the answers of servers, takes memory of its tabs.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.web.browser import CHROMIUM

if TYPE_CHECKING:
    from typing_extensions import Self


class Devtools:
    """A Chromium without a window, by its protocol for developers; leaving the context ends it."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._ids = itertools.count(1)
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        # It reads from its file 3 and writes to 4.
        moved = [os.dup(requests), os.dup(answers)]
        script = f'exec 3<&{moved[0]} 4>&{moved[1]} "$@"'
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=moved, stderr=subprocess.DEVNULL
        )
        for descriptor in (requests, answers, *moved):
            os.close(descriptor)
        self._read = os.fdopen(self._answers, "rb")
        self._left = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait(timeout=20)
        self._read.close()
        os.close(self._requests)
        self._folder.cleanup()

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to a command."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def memory(self) -> float:
        """The memory in megabytes that the processes of its tabs share with no other process."""
        kinds = self.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(_private(each["id"]) for each in kinds if each["type"] == "renderer")

    def _message(self) -> bytes:
        while b"\0" not in self._left:
            part = self._read.read1(1 << 16)
            assert part, "Chromium has ended"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return message


def _private(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3


class Tab:
    """A tab in a window of its own, so that it is visible."""

    def __init__(self, browser: Devtools, url: str) -> None:
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        self._session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._send("Page.enable")
        self._send("Page.addScriptToEvaluateOnNewDocument", source=_COUNT)
        self._send("Page.navigate", url=url)

    def heap(self) -> float:
        """The heap after a collection of garbage, in megabytes."""
        self._send("HeapProfiler.collectGarbage")
        return float(self._send("Runtime.getHeapUsage")["usedSize"]) / 1e6

    def updates(self) -> int:
        """How often the page has asked its server since it was opened."""
        return int(self._send("Runtime.evaluate", expression="window.asked ?? 0")["result"]["value"])

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)


_COUNT = "window.asked = 0; const ask = fetch; window.fetch = (...all) => { window.asked += 1; return ask(...all); };"
