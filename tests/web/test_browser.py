"""The pages in a real Chromium: scripts, policy, accessibility, widths, colors, keys and live updates.

With WATTWISE_SCREENSHOTS=1 they also write docs/screenshots/.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Route, expect
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.security.token_file import add_token
from wattwise_server.security.tokens import Role, new_token

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.browser import CHROMIUM, Opener, drawn, note, shoot, violations
from tests.web.page import HOSTILE, WebPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make test-browser` installs it where it may"),
]

PAGES = {
    "jobs": "/",
    "job": "/job?id=resnet-nightly",
    "loss": "/job?id=bert-weekly",
    "new": "/job?id=vision-new",
    "stuck": "/job?id=stuck-on-memory",
    "nan": "/job?id=nan-metrics",
    "trials": "/job/trials?id=resnet-nightly",
    "compare": "/compare?a=resnet-nightly&b=bert-weekly",
    "pick": "/compare?a=resnet-nightly",
    "trial": "/trial?job=resnet-nightly&number=9",
    "running": "/running",
    "events": "/events",
    "about": "/about",
    "glossary": "/glossary",
    "login": "/login",
    "missing": "/job?id=none",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible_in_both_schemes(
    show: Opener, faults: list[str], page: WebPage, name: str, *, dark: bool
) -> None:
    """The charts are drawn without a complaint of the browser or its policy, and axe finds nothing."""
    tab = drawn(show(page.url + PAGES[name], dark=dark))
    assert violations(tab, faults) == []
    if name == "job" or (not dark and name in ("jobs", "loss", "new")):
        shoot(tab, f"{name}{'-dark' if dark else ''}")


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_320_pixels(show: Opener, faults: list[str], page: WebPage, name: str) -> None:
    """Nothing scrolls sideways but regions that the keyboard reaches."""
    tab = drawn(show(page.url + PAGES[name], width=320, height=720))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    loose = tab.evaluate(
        "[...document.querySelectorAll('main *')].filter((each) => each.scrollWidth > each.clientWidth + 1 && "
        "['auto', 'scroll'].includes(getComputedStyle(each).overflowX) && each.tabIndex < 0)"
        ".map((each) => each.className)"
    )
    assert loose == []
    assert violations(tab, faults) == []
    if name == "job":
        shoot(tab, "job-320")


@pytest.mark.parametrize("job_id", HOSTILE)
def test_hostile_ids_run_nothing(show: Opener, page: WebPage, job_id: str) -> None:
    """From the list to the job and its trial, an id is only text."""
    tab = show(f"{page.url}/?q={quote(job_id, safe='')}")
    tab.locator("[data-row]").first.click()
    expect(tab.locator("h1")).to_have_text(job_id)
    drawn(tab)
    tab.locator("[data-row]").first.click()
    expect(tab.locator("h1")).to_have_text("Trial 1")


def test_keys_alone_lead_through_the_pages(show: Opener, page: WebPage) -> None:
    """Search, rows, opening, the charts' tables and the help need no pointer."""
    tab = show(page.url)
    tab.keyboard.press("/")
    expect(tab.locator("#q")).to_be_focused()
    tab.keyboard.type("resnet")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**q=resnet*")
    tab.keyboard.press("j")
    expect(tab.locator("[data-row]").first).to_be_focused()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/job?id=resnet-nightly")
    drawn(tab)
    tab.keyboard.press("t")
    expect(tab.locator("#table-cost table")).to_be_visible()
    tab.keyboard.press("t")
    expect(tab.locator("#table-cost table")).to_be_hidden()
    tab.keyboard.press("?")
    expect(tab.locator("#help")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator("#help")).to_be_hidden()
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    expect(tab.locator("[data-row]").first).to_be_focused()


def test_single_keys_can_be_turned_off(show: Opener, page: WebPage) -> None:
    """The help has the switch and is reached without a key; the browser remembers it, and no key does anything then."""
    tab = show(page.url)
    tab.get_by_role("button", name="Keys").click()
    tab.get_by_role("checkbox").uncheck()
    tab.get_by_role("button", name="Close").click()
    tab.goto(f"{page.url}/running")
    for key in ("/", "j", "k", "p", "?"):
        tab.keyboard.press(key)
    expect(tab.locator("#help")).to_be_hidden()
    assert tab.url == f"{page.url}/running"
    assert tab.evaluate("document.activeElement === document.body")
    expect(tab.locator("#pause")).to_have_attribute("aria-pressed", "false")
    tab.get_by_role("button", name="Keys").click()
    tab.get_by_role("checkbox").check()
    tab.keyboard.press("Escape")
    tab.keyboard.press("j")
    expect(tab.locator("[data-row]").first).to_be_focused()


def test_marks_answer_the_pointer(show: Opener, page: WebPage) -> None:
    """A mark under the pointer shows its trial, without a breach of the policy."""
    tab = drawn(show(f"{page.url}/job?id=resnet-nightly"))
    tab.locator("#plot-arms svg .mark-symbol path").first.hover()
    expect(tab.locator("#tip")).to_contain_text("expected cost")


def test_without_scripts_only_the_charts_are_missing(browser: Browser, page: WebPage) -> None:
    """The figures, lists and tables are there."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"{page.url}/job?id=resnet-nightly")
    expect(tab.locator(".big")).to_be_visible()
    tab.locator("#table-cost summary").click()
    expect(tab.locator("#table-cost table")).to_be_visible()
    context.close()


def test_updates_move_nothing(show: Opener, page: WebPage, site: LiveServer) -> None:
    """An epoch appears by itself; focus, scroll, open tables and the drawing's element stay."""
    trainer = Trainer(site.trainer, job_id="moving", job_id_prefix="moving")
    for _ in range(12):
        trainer.run(5.0)
    trial = trainer.next()
    trainer.report(trial, 1.0, 0.125, 1)
    tab = drawn(show(f"{page.url}/job?id=moving", height=500))
    tab.locator("#table-cost summary").click()
    tab.locator(f"#a-{trial.id.trial_number - 3}").focus()
    tab.evaluate("document.getElementById('plot-curves').dataset.witness = 'same'")
    before = tab.evaluate("scrollY")
    points = tab.locator("#plot-curves .role-mark.mark-symbol path").count()
    trainer.report(trial, 2.0, 0.375, 2, 2.0)
    expect(tab.locator(f"#t-{trial.id.trial_number}")).to_contain_text("0.375")
    assert tab.evaluate("scrollY") == before > 0
    expect(tab.locator(f"#a-{trial.id.trial_number - 3}")).to_be_focused()
    expect(tab.locator("#table-cost table")).to_be_visible()
    assert tab.evaluate("document.getElementById('plot-curves').dataset.witness") == "same"
    expect(tab.locator("#plot-curves .role-mark.mark-symbol path")).to_have_count(points + 1)


def test_pausing_holds_what_is_shown(show: Opener, page: WebPage, site: LiveServer) -> None:
    """While paused nothing changes; resuming shows the newest state."""
    trainer = Trainer(site.trainer, job_id="pausing", job_id_prefix="pausing")
    tab = show(f"{page.url}/?q=pausing")
    expect(tab.locator("#status")).to_have_class(re.compile("live"))
    tab.locator("#pause").click()
    expect(tab.get_by_role("button", name="Pause", pressed=True)).to_be_visible()
    trainer.next()
    # A stream that is open sees the change, so that this one had its time, too.
    other = show(f"{page.url}/?q=pausing")
    expect(other.locator(".b-run")).to_have_count(1)
    expect(tab.locator(".b-run")).to_have_count(0)
    tab.locator("#pause").click()
    expect(tab.locator(".b-run")).to_have_count(1)


@pytest.mark.parametrize("job_id", ["all", "retry", "live", "job"])
def test_an_id_may_be_a_word_of_the_script(show: Opener, page: WebPage, site: LiveServer, job_id: str) -> None:
    """A job whose id the page's own script may use for something else is followed like any other."""
    trainer = Trainer(site.trainer, job_id=job_id, job_id_prefix=job_id)
    trial = trainer.next()
    tab = show(f"{page.url}/about")
    streams: list[str] = []
    tab.on("request", lambda request: streams.append(request.url) if "/live" in request.url else None)
    tab.goto(f"{page.url}/job?id={job_id}")
    expect(tab.locator("#status")).to_have_class(re.compile("live"))
    expect(tab.locator("#away")).to_be_hidden()
    trainer.report(trial, 1.0, 0.375, 1)
    expect(tab.locator(f"#t-{trial.id.trial_number}")).to_contain_text("0.375")
    assert set(streams) == {f"{page.url}/live"}


LOGIN_FORM = "<!doctype html><title>Sign in</title><main><form><input name=user></form></main>"


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, LOGIN_FORM), (200, '<main id="main">Sign in</main>'), (421, "not for this host"), (429, "slow down")],
    ids=["a login form", "an element of the same id", "another host", "too many requests"],
)
def test_a_foreign_answer_takes_no_pages_place(
    show: Opener, page: WebPage, site: LiveServer, status: int, body: str
) -> None:
    """What a proxy answers instead of the page leaves the last data, greyed; the page retries and comes back."""
    job_id = f"proxied-{status}-{len(body)}"
    trainer = Trainer(site.trainer, job_id=job_id, job_id_prefix="proxied")
    tab = show(f"{page.url}/job?id={job_id}")
    expect(tab.locator("#status")).to_have_class(re.compile("live"))

    def answer(route: Route) -> None:
        kind = "text/html" if body.startswith("<") else "text/plain"
        route.fulfill(status=status, body=body, content_type=kind)

    tab.route("**/job?*", answer)
    trainer.next()
    expect(tab.locator("#away")).to_contain_text("Something else answers")
    expect(tab.locator("h1")).to_have_text(job_id)
    tab.unroute("**/job?*")
    expect(tab.locator("#away")).to_be_hidden()
    expect(tab.locator("#t-1")).to_be_visible()


def test_an_error_page_becomes_what_was_asked_for(show: Opener, tmp_path: Path) -> None:
    """A page opened while the server is away shows the job, its charts and its changes once the server is back."""
    with LiveServer(tmp_path) as live:
        live.start()
        trainer = Trainer(live.trainer, job_id="late", job_id_prefix="late")
        for _ in range(3):
            trainer.run(5.0)
        live.kill()
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = show(f"{page.url}/job?id=late")
            expect(tab.locator("#away")).to_contain_text("The server is away.")
            live.start()
            expect(tab.locator("h1")).to_have_text("late")
            drawn(tab)
            expect(tab.locator("#status")).to_have_class(re.compile("live"))
            trainer.next()
            expect(tab.locator("#t-4")).to_be_visible()


def test_updates_keep_what_is_typed(show: Opener, page: WebPage, site: LiveServer) -> None:
    """A text that was typed and a choice that was made stay when the page changes, wherever the focus is."""
    trainer = Trainer(site.trainer, job_id="typing", job_id_prefix="typing")
    trial = trainer.next()
    job = show(f"{page.url}/job/trials?id=typing")
    job.locator("#from").fill("7")
    job.locator("#from").press("Tab")
    jobs = show(page.url)
    jobs.locator("#q").fill("half a wo")
    jobs.locator("#q").press("Tab")
    events = show(f"{page.url}/events")
    events.locator("#kind").select_option("EVENT_KIND_TRIAL_FAILED")
    events.locator("#kind").press("Tab")
    for tab in (job, jobs, events):
        expect(tab.locator("#status")).to_have_class(re.compile("live"))
    trainer.report(trial, 1.0, 0.375, 1)
    site.admin.SetJobPaused(v1.SetJobPausedRequest(job_id="typing", paused=True))
    expect(job.locator("#t-1")).to_contain_text("0.375")
    expect(jobs.locator("#j-typing")).to_contain_text("paused")
    expect(events.locator(".events li").first).to_contain_text("typing")
    expect(job.locator("#from")).to_have_value("7")
    expect(jobs.locator("#q")).to_have_value("half a wo")
    expect(events.locator("#kind")).to_have_value("EVENT_KIND_TRIAL_FAILED")


def test_focus_stays_on_its_trial(show: Opener, tmp_path: Path) -> None:
    """When a report moves a running trial to another row, the focus goes with it."""
    with LiveServer(tmp_path) as live:
        live.start()
        one, two = (Trainer(live.trainer, job_id=name, job_id_prefix=name) for name in ("one", "two"))
        trial = one.next()
        two.next()
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = show(f"{page.url}/running")
            links = tab.locator("[data-row]")
            expect(links).to_have_text(["1 of one", "1 of two"])
            links.first.focus()
            one.report(trial, 1.0, 0.375, 1)
            expect(links).to_have_text(["1 of two", "1 of one"])
            expect(links.last).to_be_focused()


def test_the_state_alone_is_announced(show: Opener, page: WebPage, site: LiveServer) -> None:
    """The region that screen readers read aloud has a word, which updates do not change; the time is beside it."""
    trainer = Trainer(site.trainer, job_id="spoken", job_id_prefix="spoken")
    trial = trainer.next()
    tab = show(f"{page.url}/job?id=spoken")
    expect(tab.locator("#state")).to_have_text("live")
    assert tab.locator("#state").get_attribute("role") == "status"
    tab.evaluate(
        "new MutationObserver(() => { document.body.dataset.spoke = 'yes'; })"
        ".observe(document.getElementById('state'), { childList: true, characterData: true, subtree: true })"
    )
    for epoch in (1, 2):
        was = tab.locator("#as-of").text_content()
        trainer.report(trial, float(epoch), 0.125 * epoch, epoch, float(epoch))
        expect(tab.locator("#t-1")).to_contain_text(f"{0.125 * epoch:g}")
        expect(tab.locator("#as-of")).not_to_have_text(was or "")
    expect(tab.locator("body")).not_to_have_attribute("data-spoke", "yes")
    tab.keyboard.press("p")
    expect(tab.locator("#state")).to_have_text("paused")
    expect(tab.locator("body")).to_have_attribute("data-spoke", "yes")


COUNT_VIEWS = """
const { runAsync, finalize } = vega.View.prototype;
window.views = new Set();
vega.View.prototype.runAsync = function (...all) { views.add(this); return runAsync.apply(this, all); };
vega.View.prototype.finalize = function (...all) { views.delete(this); return finalize.apply(this, all); };
null;
"""


def test_each_chart_has_one_view(show: Opener, page: WebPage, site: LiveServer) -> None:
    """Drawing twice at once, and charts that go, leave no view of Vega behind."""
    trainer = Trainer(site.trainer, job_id="drawing", job_id_prefix="drawing")
    for _ in range(3):
        trainer.run(5.0)
    trial = trainer.next()
    trainer.report(trial, 1.0, 0.125, 1)
    tab = drawn(show(f"{page.url}/job?id=drawing"))
    tab.evaluate(COUNT_VIEWS)
    plots = tab.locator(".plot")
    for scheme in ("dark", "light", "dark"):
        tab.emulate_media(color_scheme=scheme)
    expect(tab.locator("#plot-curves")).to_have_count(1)
    trainer.end(trial, v1.END_REASON_ERROR)
    site.admin.ResetJob(v1.ResetJobRequest(job_id="drawing", request_id=new_id()))
    expect(tab.locator("#plot-curves")).to_have_count(0)
    trainer.run(5.0)
    expect(tab.locator("#plot-curves")).to_have_count(1)
    # The newest drawing has ended when a change of the scheme after it is visible.
    tab.evaluate("delete document.body.dataset.drawn")
    tab.emulate_media(color_scheme="light")
    expect(tab.locator("body")).to_have_attribute("data-drawn", "yes")
    assert tab.evaluate("views.size") == plots.count() > 1


FALSE_TIME = """
performance.now = () => 100000;
const { setTimeout } = window;
window.setTimeout = (action, delay, ...all) => {
  if (action.name !== "refresh") return setTimeout(action, delay, ...all);
  document.body.dataset.pace = String(delay);
  return setTimeout(action, 0);
};
"""


@pytest.mark.parametrize(("pause", "pace"), [("", "1000"), ("4.5", "4500"), ("30.000", "30000")])
def test_windows_wait_as_long_as_they_are_told(
    show: Opener, page: WebPage, site: LiveServer, pause: str, pace: str
) -> None:
    """Each answer says how soon the page may ask again."""
    trainer = Trainer(site.trainer, job_id=f"paced-{pause}", job_id_prefix="paced")
    tab = show(f"{page.url}/about")
    tab.add_init_script(FALSE_TIME)

    def answer(route: Route) -> None:
        answer = route.fetch()
        kept = {name: text for name, text in answer.headers.items() if name != "x-wattwise-pause"}
        route.fulfill(response=answer, headers={**kept, **({"X-Wattwise-Pause": pause} if pause else {})})

    tab.route("**/?q=*", answer)
    tab.goto(f"{page.url}/?q=paced-{pause}")
    expect(tab.locator("#status")).to_have_class(re.compile("live"))
    trial = trainer.next()
    expect(tab.locator(".b-run")).to_have_count(1)
    trainer.report(trial, 1.0, 0.125, 1)
    expect(tab.locator("body")).to_have_attribute("data-pace", pace)


def test_windows_of_one_browser_share_a_stream(browser: Browser, tmp_path: Path) -> None:
    """Seven windows, one more than a browser's connections, all load and follow their jobs; then another takes over."""
    with LiveServer(tmp_path) as live, contextlib.closing(browser.new_context()) as context:
        live.start()
        trainers = [Trainer(live.trainer, job_id=f"window-{number}", job_id_prefix="window") for number in range(7)]
        streams: list[str] = []
        context.on("request", lambda request: streams.append(request.url) if "/live" in request.url else None)
        with WebPage(live.address, tmp_path / "web.log") as page:
            windows = [context.new_page() for _ in trainers]
            for window, trainer in zip(windows, trainers, strict=True):
                window.goto(f"{page.url}/job?id={trainer.job_id}")
                expect(window.locator("#state")).to_have_text("live")
            assert len(streams) == 1

            def follows(number: int) -> None:
                trial = trainers[number].next()
                expect(windows[number].locator(f"#t-{trial.id.trial_number}")).to_have_count(1)
                trainers[number].end(trial, v1.END_REASON_PREEMPTED)

            for number in (0, 3, 6):
                follows(number)
            assert len(streams) == 1
            windows[0].close()
            follows(3)
            follows(6)
            assert len(streams) == 2


def test_a_browser_that_cannot_share_asks(show: Opener, page: WebPage) -> None:
    """Without locks a window has no stream, and says how often it asks."""
    tab = show(f"{page.url}/about")
    tab.add_init_script("Object.defineProperty(navigator, 'locks', { value: undefined });")
    tab.goto(f"{page.url}/")
    expect(tab.locator("#state")).to_have_text("every 10 s")


def test_a_killed_server_leaves_its_last_data_and_comes_back(show: Opener, tmp_path: Path) -> None:
    """The page greys what it has, says of when it is and retries; once the server is back, it is live again."""
    with LiveServer(tmp_path) as live:
        live.start()
        trainer = Trainer(live.trainer, job_id="lasting", job_id_prefix="lasting")
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = show(page.url)
            expect(tab.locator("#status")).to_have_class(re.compile("live"))
            live.kill()
            expect(tab.locator("#away")).to_contain_text("as of")
            expect(tab.locator("#ja-lasting")).to_be_visible()
            shoot(tab, "away")
            # Pausing does not bring the server back.
            tab.locator("#pause").click()
            expect(tab.locator("#state")).to_have_text("paused")
            expect(tab.locator("#away")).to_contain_text("paused")
            tab.locator("#pause").click()
            expect(tab.locator("#away")).to_contain_text("retrying")
            live.start()
            trainer.next()
            expect(tab.locator("#away")).to_be_hidden(timeout=30_000)
            expect(tab.locator(".b-run")).to_have_count(1)


def test_a_first_visit_is_accessible(show: Opener, faults: list[str], tmp_path: Path) -> None:
    """The page without jobs has a trainer's lines, and axe finds nothing."""
    with LiveServer(tmp_path) as live:
        live.start()
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = show(page.url)
            expect(tab.locator("pre")).to_contain_text(live.address)
            assert violations(tab, faults) == []


def test_an_ended_login_leads_back_to_the_same_place(show: Opener, tmp_path: Path) -> None:
    """A tab whose session has ended goes to the login, and from there to where it was."""
    with LiveServer(tmp_path) as live:
        live.start()
        Trainer(live.trainer, job_id="a?b&c", job_id_prefix="a")
        live.stop()
        live.forget_channel()
        text, token = new_token(Role.VIEWER, "a", None)
        add_token(tmp_path / "tokens", token)
        live.start("--tokens", str(tmp_path / "tokens"))
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = show(f"{page.url}/job?id=a%3Fb%26c")
            tab.locator("#token").fill(text)
            tab.keyboard.press("Enter")
            expect(tab.locator("h1")).to_have_text("a?b&c")
            # The session ends elsewhere, as in another tab.
            tab.request.post(f"{page.url}/logout", headers={"Origin": page.url}, max_redirects=0)
            tab.context.clear_cookies()
            # The live stream tells it, or the next update if the stream was not open yet.
            expect(tab.locator("#token")).to_be_visible(timeout=120_000)
            tab.locator("#token").fill(text)
            tab.keyboard.press("Enter")
            expect(tab.locator("h1")).to_have_text("a?b&c")
            assert tab.url == f"{page.url}/job?id=a%3Fb%26c"


def test_an_export_is_one_file_that_needs_nothing(
    browser: Browser, site: LiveServer, tmp_path: Path, faults: list[str]
) -> None:
    """The file draws its charts offline, asks for nothing, and axe finds nothing."""
    file = tmp_path / "report.html"
    command = [
        sys.executable,
        "-m",
        "wattwise_web",
        "--server",
        site.address,
        "export",
        "--job",
        "resnet-nightly",
        str(file),
    ]
    subprocess.run(command, check=True, timeout=60)
    context = browser.new_context(offline=True)
    tab = context.new_page()
    tab.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
    tab.on("console", lambda message: note(faults, message.type, message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.goto(file.as_uri())
    drawn(tab)
    assert tab.locator("main a").count() == 0
    assert violations(tab, faults) == []
    tab.get_by_role("radio", name="by date").check()
    expect(tab.get_by_text("date (UTC)", exact=True)).to_have_count(2)
    context.close()


def test_a_thousand_trials_are_a_thousand_marks(show: Opener, tmp_path: Path) -> None:
    """A job of a thousand trials draws one mark for each."""
    with LiveServer(tmp_path) as live:
        live.start()
        trainer = Trainer(live.trainer, job_id="long", job_id_prefix="long", policy="gts")
        for number in range(1_000):
            trainer.run(5.0 + number % 7)
        with WebPage(live.address, tmp_path / "web.log") as page:
            tab = drawn(show(f"{page.url}/job?id=long"))
            assert len(tab.request.get(tab.url).body()) <= 200_000
            assert tab.locator("#plot-cost .mark-symbol.role-mark path").count() == 1_000
