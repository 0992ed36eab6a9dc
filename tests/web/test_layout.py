"""The pages at three widths in a real Chromium, with the longest ids and labels and with many batch sizes."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.browser import CHROMIUM, Opener, drawn, violations
from tests.web.page import WebPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make test-browser` installs it where it may"),
]

WIDTHS = (320, 768, 1280)
LONG = "w" * 200
"""The longest id, which can be broken nowhere."""
MANY = [8 * number for number in range(1, 65)]
SHADOW = 20
"""How much darker a shaded edge is at least, of 255."""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Jobs with long ids, hosts and labels, 64 batch sizes, bans, pins, exclusions, warnings and running trials."""
    with LiveServer(tmp_path_factory.mktemp("crowded")) as live:
        live.start("--electricity-price", "0.31", "--currency", "EUR", "--carbon-intensity", "380")
        dice = random.Random(5)
        wide = Trainer(live.trainer, job_id=LONG, job_id_prefix="w", batch_sizes=MANY, default_batch_size=128,
                       policy="knowledge_gradient", max_epochs=30)  # fmt: skip
        labels = {"host": "h" * 200, "k" * 63: "v" * 200, "log_url": f"https://logs.example/{'l' * 170}"}
        for number in range(14):
            train(live, wide, dice, labels, size=MANY[5 * number % 64] if number % 3 else 0)
        exclude(live, LONG, 3)
        ban(live, LONG, 512)
        ban(live, LONG, 504)
        pin(live, LONG, 200)
        live.admin.RequestBaseline(v1.RequestBaselineRequest(job_id=LONG, request_id=new_id()))
        launch(live, wide, labels)
        usual = Trainer(live.trainer, job_id="resnet-nightly", job_id_prefix="resnet", batch_sizes=[16, 32, 64, 128],
                        default_batch_size=128, policy="knowledge_gradient", max_epochs=30)  # fmt: skip
        for _ in range(14):
            train(live, usual, dice, {"host": "node-7.cluster.example"})
        exclude(live, "resnet-nightly", 12)
        yield live


def launch(server: LiveServer, trainer: Trainer, labels: dict[str, str]) -> v1.Trial:
    """A running trial with labels."""
    return server.trainer.GetNextBatchSize(
        v1.GetNextBatchSizeRequest(job_id=trainer.job_id, launch_id=new_id(), labels=labels)
    ).trial


def train(server: LiveServer, trainer: Trainer, dice: random.Random, labels: dict[str, str], size: int = 0) -> None:
    """A trial of five epochs, of a batch size or of that which the search chooses."""
    if size:
        pin(server, trainer.job_id, size)
    trial = launch(server, trainer, labels)
    for epoch in range(1, 6):
        cost = 1e6 * epoch * dice.uniform(0.9, 1.1) * (1 + abs(trial.batch_size - 200) / 100)
        trainer.report(trial, cost, 0.95 if epoch == 5 else 0.5 + epoch / 12, epoch, 60.0 * epoch)
    if size:
        pin(server, trainer.job_id, None)


def pin(server: LiveServer, job_id: str, size: int | None) -> None:
    """Pins a batch size, or unpins it."""
    server.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job_id, batch_size=size))


def ban(server: LiveServer, job_id: str, size: int) -> None:
    """Bans a batch size."""
    server.admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job_id, batch_size=size, banned=True))


def exclude(server: LiveServer, job_id: str, number: int) -> None:
    """Takes a trial out."""
    trial = v1.TrialId(job_id=job_id, trial_number=number)
    server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial, excluded=True))


@pytest.fixture(scope="module")
def url(crowded: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page on it."""
    with WebPage(crowded.address, tmp_path_factory.mktemp("page") / "web.log") as page:
        yield page.url


PAGES = {
    "jobs": "/",
    "job": "/job?id=resnet-nightly",
    "long": f"/job?id={LONG}",
    "trials": f"/job/trials?id={LONG}&label={'k' * 63}={'v' * 200}",
    "trial": f"/trial?job={LONG}&number=13",
    "compare": f"/compare?a={LONG}&b=resnet-nightly",
    "pick": f"/compare?a=resnet-nightly&b={'w' * 150}",
    "running": "/running",
    "events": "/events",
    "about": "/about",
    "glossary": "/glossary",
    "missing": f"/job?id={'m' * 200}",
}

# Texts that are seen: of each text node its lines, as far as nothing around it cuts them off.
_LINES = """
window.lines = () => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest(".sr, .skip, script, style, option")) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].map(({ left, right, top, bottom }) => ({ left, right, top, bottom }));
    for (let around = element; around && around !== document.body; around = around.parentElement) {
      const style = getComputedStyle(around);
      if (style.position === "absolute" && style.clipPath !== "none") lines.length = 0;
      if (style.overflowX === "visible") continue;
      const box = around.getBoundingClientRect();
      for (const line of lines) {
        line.left = Math.max(line.left, box.left);
        line.right = Math.min(line.right, box.right);
        line.top = Math.max(line.top, box.top);
        line.bottom = Math.min(line.bottom, box.bottom);
      }
    }
    const shown = lines.filter((line) => line.right - line.left > 1 && line.bottom - line.top > 1);
    if (shown.length) found.push({ text: node.textContent.trim(), element, lines: shown });
  }
  return found;
};
null;
"""
_OVERLAPS = """
(() => {
  const found = [], all = lines();
  all.forEach((one, place) => {
    for (const other of all.slice(place + 1)) {
      if (one.element === other.element) continue;
      for (const a of one.lines) for (const b of other.lines) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && high > 5) found.push(`${one.text.slice(0, 40)} | ${other.text.slice(0, 40)}`);
      }
    }
  });
  return found;
})()
"""
_BROKEN = """
lines().filter(({ text, lines }) => !/\\s/.test(text) && text.length >= 8 && text.length / lines.length < 6)
  .map(({ text, lines }) => `${text.slice(0, 40)}: ${lines.length} lines`)
"""


def looked_at(tab: Page, script: str) -> Any:
    """What a script finds among the texts of a page."""
    tab.evaluate(_LINES)
    return tab.evaluate(script)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_their_width(show: Opener, url: str, name: str, width: int) -> None:
    """The page does not scroll sideways, no name is broken into single letters, and no text lies over another."""
    tab = drawn(show(url + PAGES[name], width=width))
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert looked_at(tab, _BROKEN) == []
    assert looked_at(tab, _OVERLAPS) == []


@pytest.mark.parametrize("name", ["long", "trials", "compare"])
def test_crowded_pages_are_accessible(show: Opener, faults: list[str], url: str, name: str) -> None:
    """Excluded trials, links to logs, the switch of the axis and the comparison leave axe nothing to find."""
    for dark in (False, True):
        assert violations(drawn(show(url + PAGES[name], width=768, dark=dark)), faults) == []


def edges(tab: Page, selector: str) -> tuple[int, int]:
    """How much darker the left and the right edge of an element are than its middle, from 0 to 255."""
    image = Image.open(io.BytesIO(tab.locator(selector).first.screenshot())).convert("L")
    width, height = image.size

    def brightness(left: int) -> int:
        # The brightest pixels of a strip are its background, whatever stands on it.
        counts = image.crop((left, 0, left + 3, height)).histogram()
        below = list(accumulate(counts))
        return next(value for value, count in enumerate(below) if count >= 0.9 * below[-1])

    middle = max(brightness(left) for left in range(width // 4, 3 * width // 4, 4))
    return middle - brightness(1), middle - brightness(width - 4)


def test_a_table_that_is_cut_off_has_a_shadow(show: Opener, url: str) -> None:
    """On a phone, the edge behind which a table goes on is shaded; at its end, only the other edge is."""
    tab = show(url + PAGES["trials"], width=320)
    region = tab.locator(".scroll").first
    assert region.evaluate("(each) => each.scrollWidth > each.clientWidth + 50")
    left, right = edges(tab, ".scroll")
    assert left < SHADOW < right
    region.evaluate("(each) => each.scrollTo(each.scrollWidth, 0)")
    left, right = edges(tab, ".scroll")
    assert right < SHADOW < left


def test_the_list_of_jobs_names_its_figures_where_it_has_no_heading(show: Opener, url: str) -> None:
    """On narrow screens a job is a card, each of whose figures has its name; on others it is a row that fits."""
    for width, shown in (
        (320, "block"),
        (768, "block"),
        (1023, "block"),
        (1024, "none"),
        (1240, "none"),
        (1280, "none"),
    ):
        tab = show(url, width=width)
        parts = "[...document.querySelectorAll('html, .scroll')]"
        assert tab.evaluate(f"{parts}.every((each) => each.scrollWidth <= each.clientWidth + 1)"), width
        content = tab.locator(".jobs td[data-label='used now']").first.evaluate(
            "(cell) => [getComputedStyle(cell, '::before').content, getComputedStyle(cell, '::before').display]"
        )
        assert (content[0] == '"used now"') is (shown == "block"), width


def test_marks_lead_to_their_trials(show: Opener, url: str) -> None:
    """A click on a mark opens its trial; its tooltip says when and how it ended, and why it had its batch size."""
    tab = drawn(show(url + PAGES["job"]))
    marks = tab.locator("#plot-cost svg .mark-symbol.role-mark path")
    marks.first.hover()
    for name in ("trial", "batch size", "cost", "result", "ended", "epochs", "why this batch size"):
        expect(tab.locator("#tip")).to_contain_text(name)
    expect(tab.locator("#tip")).to_contain_text("The default".lower())
    number = (tab.locator("#tip div").first.text_content() or "").removeprefix("trial")
    marks.first.click()
    expect(tab.locator("h1")).to_have_text(f"Trial {number}")


def test_marks_of_an_excluded_trial_are_struck_through(show: Opener, url: str) -> None:
    """Its symbol is grey, with a line through it, and its tooltip says that it is excluded."""
    tab = drawn(show(url + PAGES["job"]))
    struck = tab.locator("#plot-cost svg .mark-symbol.role-mark path[stroke='#7d8590']")
    expect(struck).to_have_count(2)
    # The line through it is above it.
    struck.first.hover(force=True)
    expect(tab.locator("#tip")).to_contain_text("excluded")


def test_charts_by_date(show: Opener, url: str) -> None:
    """The switch gives the charts by trial an axis of dates; the browser remembers it, also for other pages."""
    tab = drawn(show(url + PAGES["job"]))
    dated = tab.get_by_text("date (UTC)", exact=True)
    expect(dated).to_have_count(0)
    tab.get_by_role("radio", name="by date").check()
    expect(dated).to_have_count(2)
    tab.reload()
    expect(tab.get_by_role("radio", name="by date")).to_be_checked()
    expect(dated).to_have_count(2)
    tab.goto(url + PAGES["compare"])
    expect(dated).to_have_count(3)
    tab.get_by_role("radio", name="by trial").check()
    expect(dated).to_have_count(0)
    tab.goto(url + PAGES["job"])
    expect(tab.get_by_role("radio", name="by trial")).to_be_checked()
    expect(drawn(tab).get_by_text("date (UTC)", exact=True)).to_have_count(0)


def test_labels_of_axes_have_one_unit(show: Opener, url: str) -> None:
    """Each label of an axis of costs but zero has the unit, the same one."""
    tab = drawn(show(url + PAGES["job"]))
    texts = tab.locator("#plot-cost svg .role-axis-label text").all_text_contents()
    costs = [text for text in texts if not text.isdigit()]
    assert len(costs) > 2
    assert {text.split(" ")[1] for text in costs} == {"MJ"}
    assert "0" in texts


def test_updates_keep_the_axis(show: Opener, crowded: LiveServer, url: str) -> None:
    """A chart by date stays one when a trial is added."""
    trainer = Trainer(crowded.trainer, job_id="growing", job_id_prefix="growing")
    for _ in range(3):
        trainer.run(5.0)
    tab = drawn(show(f"{url}/job?id=growing"))
    tab.get_by_role("radio", name="by date").check()
    marks = tab.locator("#plot-cost svg .mark-symbol.role-mark path")
    expect(marks).to_have_count(3)
    expect(tab.locator("#state")).to_have_text("live")
    trainer.run(6.0)
    # On a slow machine, pages wait longer between two updates.
    expect(marks).to_have_count(4, timeout=120_000)
    expect(tab.locator("#plot-cost").get_by_text("date (UTC)", exact=True)).to_have_count(1)
    expect(tab.get_by_role("radio", name="by date")).to_be_checked()
