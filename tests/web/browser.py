"""The machine's Chromium, and what tests look at in its tabs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import axe_playwright_python
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium."""
    with sync_playwright() as playwright:
        # Tests may run as root, where Chromium has no sandbox.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
SHOTS = Path(__file__).parents[2] / "docs/screenshots"
LARGEST_SHOT = 100_000
Opener = Callable[..., Page]


def note(faults: list[str], kind: str, text: str) -> None:
    """Failed requests are not faults: tests stop the server."""
    if kind in ("error", "warning") and "Failed to load resource" not in text and "ERR_" not in text:
        faults.append(f"{kind}: {text}")


def drawn(tab: Page) -> Page:
    """Waits for the charts; not with `wait_for_function`, whose eval the policy refuses."""
    if tab.locator(".spec").count():
        expect(tab.locator("body")).to_have_attribute("data-drawn", "yes")
    for plot in tab.locator(".plot").all():
        expect(plot.locator("svg")).to_have_count(1)
    return tab


def shoot(tab: Page, name: str) -> None:
    """Writes a screenshot, if that is wanted."""
    if os.environ.get("WATTWISE_SCREENSHOTS") != "1":
        return
    image = (
        Image.open(io.BytesIO(tab.screenshot()))
        .convert("RGB")
        .quantize(255, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    SHOTS.mkdir(exist_ok=True)
    image.save(SHOTS / f"{name}.png", optimize=True)
    assert (SHOTS / f"{name}.png").stat().st_size < LARGEST_SHOT


def violations(tab: Page, faults: list[str]) -> list[str]:
    """What axe finds. It tries an eval of its own, which the policy refuses: that is no fault of the page."""
    assert faults == []
    tab.evaluate(AXE)
    found = json.loads(tab.evaluate("axe.run().then((result) => JSON.stringify(result.violations))"))
    tab.wait_for_timeout(50)
    faults[:] = [fault for fault in faults if "script-src" not in fault]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]
