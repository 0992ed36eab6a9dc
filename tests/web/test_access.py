"""Who gets in: logins, roles, prefixes, hosts, other sites, and where the page listens."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from wattwise import Client, Credentials
from wattwise.errors import ServerUnavailableError
from wattwise_server.security.token_file import add_token
from wattwise_server.security.tokens import Role, new_token
from wattwise_web import live
from wattwise_web.sessions import IDLE_SECONDS, MOST_OF_TOKEN, Sessions
from wattwise_web.settings import Settings, SettingsError, listen

from tests.client.test_files import SPECIAL
from tests.credentials import Authority
from tests.forking import run
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.ports import hold_port, port_of
from tests.web.page import WebPage


class Guarded(LiveServer):
    """A server that needs tokens."""

    def token(self, role: Role, prefix: str = "") -> str:
        """A new token; a server that runs knows it after a moment."""
        text, token = new_token(role, prefix, None)
        add_token(self.database.with_name("tokens"), token)
        return text


@pytest.fixture(scope="module")
def tokens() -> dict[str, str]:
    """Tokens by name, filled by `guarded`."""
    return {}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tokens: dict[str, str]) -> Iterator[WebPage]:
    """The page on a server that needs tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    with Guarded(folder) as server:
        server.start()
        Trainer(server.trainer, job_id="a-job", job_id_prefix="a")
        Trainer(server.trainer, job_id="b-job", job_id_prefix="b")
        server.stop()
        tokens["viewer"] = server.token(Role.VIEWER, "a-")
        tokens["trainer"] = server.token(Role.TRAINER, "a-")
        tokens["admin"] = server.token(Role.ADMIN)
        server.forget_channel()
        server.start("--tokens", str(folder / "tokens"))
        with WebPage(server.address, folder / "web.log") as page:
            yield page


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of this test."""
    with hold_port() as held:
        yield held


def log_in(page: WebPage, web: httpx.Client, token: str, following: str = "/", **headers: str) -> httpx.Response:
    """Sends the form, as a browser does from the page itself."""
    sent = {"Origin": page.url} | headers
    return web.post("/login", data={"token": token, "next": following}, headers=sent)


def test_without_a_login_every_page_leads_to_it(guarded: WebPage) -> None:
    """Pages and files send to the login and say where to go on; a fragment gets 401."""
    with guarded.client() as web:
        answer = web.get("/job?id=a-job&from=3")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fjob%3Fid%3Da-job%26from%3D3"
        assert web.get("/job/trials.csv?id=a-job").status_code == 303
        assert web.get("/", headers={"X-Wattwise-Fragment": "1"}).status_code == 401
        assert "event: login" in web.get("/live").text


def test_a_login_leads_back_and_its_cookie_is_closed_to_scripts(guarded: WebPage, tokens: dict[str, str]) -> None:
    """The cookie holds no token; the token is in no answer and in no log."""
    with guarded.client() as web:
        answer = log_in(guarded, web, tokens["viewer"], "/job?id=a-job")
        assert (answer.status_code, answer.headers["location"]) == (303, "/job?id=a-job")
        cookie = answer.headers["set-cookie"]
        assert re.fullmatch(r"wattwise=[\w-]{43}; HttpOnly; Path=/; SameSite=lax", cookie)
        page = web.get("/job?id=a-job")
        assert page.status_code == 200
        assert tokens["viewer"] not in page.text
    assert tokens["viewer"] not in guarded.log.read_text()


def test_prefixes_stay_the_servers(guarded: WebPage, tokens: dict[str, str]) -> None:
    """A token sees the jobs with its prefix, and the page of another job is forbidden."""
    with guarded.client() as web:
        log_in(guarded, web, tokens["viewer"])
        listed = web.get("/").text
        assert "a-job" in listed
        assert "b-job" not in listed
        assert web.get("/job?id=b-job").status_code == 403
        assert "viewer" in web.get("/about").text
    with guarded.client() as web:
        log_in(guarded, web, tokens["admin"])
        assert "b-job" in web.get("/").text


@pytest.mark.parametrize(("token", "status"), [("", 400), ("not a token", 400), ("ww_unknown.secret", 401)])
def test_tokens_that_the_server_refuses_do_not_log_in(guarded: WebPage, token: str, status: int) -> None:
    """The form comes again with the reason, and no cookie is set."""
    with guarded.client() as web:
        answer = log_in(guarded, web, token)
        assert answer.status_code == status
        assert "set-cookie" not in answer.headers
        assert 'role="alert"' in answer.text


def test_a_trainers_token_may_not_read(guarded: WebPage, tokens: dict[str, str]) -> None:
    """A role without access to the lists is refused at the login."""
    with guarded.client() as web:
        assert log_in(guarded, web, tokens["trainer"]).status_code == 403


@pytest.mark.parametrize(
    "following",
    [
        *("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/e"),
        *("/../other", "/job/../../other", "/%2e%2e/other", "/./", "/a/%2E./b"),
    ],
)
def test_a_login_leads_nowhere_else(guarded: WebPage, tokens: dict[str, str], following: str) -> None:
    """A target on another site, or outside the page's own path, becomes the first page."""
    with guarded.client() as web:
        assert log_in(guarded, web, tokens["viewer"], following).headers["location"] == "/"


def test_a_logout_ends_the_session_at_once(guarded: WebPage, tokens: dict[str, str]) -> None:
    """A copy of the cookie is useless after it."""
    with guarded.client() as web:
        log_in(guarded, web, tokens["viewer"])
        copy = dict(web.cookies)
        assert web.post("/logout", headers={"Origin": guarded.url}).status_code == 303
    with httpx.Client(base_url=guarded.url, cookies=copy) as thief:
        assert thief.get("/").status_code == 303


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": ""}])
def test_forms_of_other_sites_are_refused(guarded: WebPage, tokens: dict[str, str], headers: dict[str, str]) -> None:
    """A POST needs the page's own origin."""
    with guarded.client() as web:
        assert log_in(guarded, web, tokens["viewer"], **headers).status_code == 403
        assert web.post("/logout", headers=headers).status_code == 403


def test_a_form_that_is_too_large_is_refused(guarded: WebPage) -> None:
    """The body of a login is limited."""
    with guarded.client() as web:
        assert log_in(guarded, web, "x" * 9_000).status_code == 413


def test_other_hosts_are_refused(page: WebPage) -> None:
    """A name that leads to this machine, as in DNS rebinding, gets nothing; localhost does."""
    with page.client() as web:
        port = page.url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil.example", "127.0.0.2", "localhost:x"):
            assert web.get("/", headers={"Host": host}).status_code in (400, 421)
        # A forwarded port has another number.
        for host in (f"localhost:{port}", "localhost:9000", "127.0.0.1:9000", "[::1]:9000", "LOCALHOST"):
            assert web.get("/", headers={"Host": host}).status_code == 200


def test_probes_need_no_host_name(page: WebPage) -> None:
    """`/healthz`, and nothing below it, is answered under any host name, as probes use an address."""
    with page.client() as web:
        answer = web.get("/healthz", headers={"Host": "10.0.0.7:8080"})
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert web.get("/healthz/", headers={"Host": "10.0.0.7:8080"}).status_code == 421


def test_sessions_end_after_idle_hours() -> None:
    """A session that is used stays; one that is idle for longer than the limit is gone."""
    now, ended = [0.0], list[str]()
    sessions = Sessions(ended.append, lambda: now[0])
    session, other = sessions.open("secret-token"), sessions.open("other-token")
    now[0] += IDLE_SECONDS - 1
    assert sessions.token(session) == "secret-token"
    assert sessions.is_open(other)
    now[0] += IDLE_SECONDS
    assert (sessions.is_open(session), sessions.is_open(other), ended) == (True, False, ["other-token"])
    now[0] += 2
    assert sessions.token(session) is None
    assert ended == ["other-token", "secret-token"]
    assert "secret-token" not in repr(vars(sessions))


def test_a_token_ends_its_own_sessions_only() -> None:
    """Someone who logs in again and again ends the oldest sessions of the same token."""
    ended: list[str] = []
    sessions = Sessions(ended.append)
    other, first = sessions.open("other-token"), sessions.open("token")
    for _ in range(MOST_OF_TOKEN - 1):
        sessions.open("token")
    assert sessions.is_open(first)
    for _ in range(10_000):
        sessions.open("token")
    assert not sessions.is_open(first)
    assert sessions.is_open(other)
    assert set(ended) == {"token"}


def test_a_logout_ends_open_streams(guarded: WebPage, tokens: dict[str, str]) -> None:
    """A stream that was opened with the session says nothing of the next change, and ends."""
    with guarded.client() as web:
        log_in(guarded, web, tokens["viewer"])
        with web.stream("GET", "/live") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: change"
            assert web.post("/logout", headers={"Origin": guarded.url}).status_code == 303
            assert [line for line in lines if line.startswith("event:")] == ["event: login"]


def test_a_fragment_says_when_to_ask_again(page: WebPage) -> None:
    """After a second at the earliest; a whole page does not say it."""
    with page.client() as web:
        fragment = web.get("/about", headers={"X-Wattwise-Fragment": "1"})
        assert 1.0 <= float(fragment.headers["X-Wattwise-Pause"]) <= live.LONGEST_PAUSE
        assert "X-Wattwise-Pause" not in web.get("/about").headers


def test_windows_share_a_fortieth_of_the_time() -> None:
    """After an answer that took 100 ms a window waits 4 s, and behind others longer, but 30 s at most."""
    now = [0.0]
    pace = live.Pace(lambda: now[0])
    assert pace.pause_after(0.01) == 1.0
    now[0] = 10.0
    assert [pace.pause_after(0.1) for _ in range(9)] == [*(4.0 * place for place in range(1, 8)), 30.0, 30.0]
    now[0] = 100.0
    assert pace.pause_after(0.1) == 4.0


def test_head_asks_for_headers_alone(page: WebPage) -> None:
    """Neither a stream nor an export begins."""
    with page.client() as web:
        for path, kind in (("/live", "text/event-stream"), ("/job/trials.csv?id=vision-new", "text/csv")):
            answer = web.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith(kind)


def test_streams_that_are_left_leave_nothing_behind(site: LiveServer, tmp_path: Path) -> None:
    """The log has no task that was still pending when it was collected, and the page ends with open streams."""
    with WebPage(site.address, tmp_path / "web.log") as page, page.client() as web:
        for _ in range(5):
            with web.stream("GET", "/live") as stream:
                next(stream.iter_lines())
        with web.stream("GET", "/live") as stream:
            next(stream.iter_lines())
            assert page.stop() == 0
        assert "Task was destroyed" not in page.log.read_text()


def test_static_files_are_compressed_and_asked_for_again(page: WebPage) -> None:
    """Browsers ask whether a file has changed, so that an older script never meets a newer page."""
    with page.client() as web:
        first = web.get("/static/app.js")
        assert (first.headers["cache-control"], first.headers["content-encoding"]) == ("no-cache", "gzip")
        assert web.get("/static/app.js", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_strangers_do_not_learn_the_servers_address(guarded: WebPage, tokens: dict[str, str]) -> None:
    """The login says nothing of it; about does, to those who are logged in."""
    with guarded.client() as web:
        address = guarded.server
        assert address not in web.get("/login").text
        log_in(guarded, web, tokens["viewer"])
        assert address in web.get("/about").text


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--address", "0.0.0.0:0"], "--tls-cert"),
        (["--address", "0.0.0.0:0", "--insecure"], "--public-url"),
        (["--address", "nonsense"], "host:port"),
        (["--public-url", "ftp://x"], "https://ml.example"),
        (["--public-url", "http://ml.example"], "--insecure"),
        (["--public-url", "https://ml.example//evil.example"], "/wattwise"),
        (["--public-url", "https://ml.example/a%20b"], "/wattwise"),
        (["--public-url", "https://ml.example/a/../b"], "/wattwise"),
        (["--public-url", "https://ml.example/events/"], "also a page"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--server", "http://x"], "host:port"),
    ],
)
def test_what_would_let_anyone_in_is_refused(options: list[str], fault: str) -> None:
    """The start fails with one line that says what to set."""
    done = run("web", "--address", "127.0.0.1:0", *options)
    assert done.returncode == 1
    assert done.stderr.startswith("wattwise web: ")
    assert fault in done.stderr
    assert done.stderr.count("\n") == 1


def test_behind_a_proxy(site: LiveServer, tmp_path: Path, port: socket.socket) -> None:
    """With a public URL, links have its path, its host is accepted, and the cookie needs HTTPS."""
    address = f"127.0.0.1:{port_of(port)}"
    options = ("--public-url", "https://ml.example/wattwise")
    with WebPage(site.address, tmp_path / "web.log", *options, address=address) as page:
        assert page.url == "https://ml.example/wattwise"
        with httpx.Client(base_url=f"http://{address}", headers={"Host": "ml.example"}) as web:
            for path in ("/wattwise/", "/"):
                answer = web.get(path)
                assert (answer.status_code, answer.headers["location"]) == (303, "/wattwise/login?next=%2F")
            form = web.get("/wattwise/login").text
            assert 'action="/wattwise/login"' in form
            assert 'href="/wattwise/static/app.css"' in form
            assert web.get("/wattwise/static/app.css").status_code == 200
            sent = {"Origin": "https://ml.example"}
            answer = web.post("/wattwise/login", data={"token": "any", "next": "/"}, headers=sent)
            # This server checks no tokens: anyone would get in.
            assert answer.status_code == 403
            assert web.post("/wattwise/login", headers={"Origin": "http://ml.example"}).status_code == 403
            answer = web.post("/wattwise/logout", headers=sent)
            assert answer.headers["set-cookie"].startswith("__Host-wattwise=")
            assert "; Secure" in answer.headers["set-cookie"]
            assert "strict-transport-security" in answer.headers


def test_a_forwarded_port_beside_a_proxy(site: LiveServer, tmp_path: Path, port: socket.socket) -> None:
    """A browser on a forwarded port uses HTTP although the public URL is https, and can log in and out."""
    address = f"127.0.0.1:{port_of(port)}"
    options = ("--public-url", "https://ml.example/wattwise")
    with (
        WebPage(site.address, tmp_path / "web.log", *options, address=address),
        httpx.Client(base_url=f"http://{address}") as web,
    ):
        for host in ("localhost:9000", address):
            answer = web.post("/logout", headers={"Host": host, "Origin": f"http://{host}"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/wattwise/login")
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith("wattwise=")
            assert "Secure" not in cookie
            assert "strict-transport-security" not in answer.headers
            for origin in (f"https://{host}", "http://localhost:9001", "https://ml.example", "http://ml.example"):
                assert web.post("/logout", headers={"Host": host, "Origin": origin}).status_code == 403
        assert "strict-transport-security" not in web.get("/", headers={"Host": "evil.example"}).headers


def test_https(site: LiveServer, tmp_path: Path) -> None:
    """With a certificate the page speaks TLS."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    certificate.private_key_pem.write_to_path(key)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    authority.cert_pem.write_to_path(ca)
    with WebPage(site.address, tmp_path / "web.log", "--tls-cert", str(cert), "--tls-key", str(key)) as page:
        assert page.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(ca))
        with httpx.Client(base_url=page.url, verify=context) as web:
            assert web.get("/").status_code == 200
        client_calls_the_page(page, Credentials(tls_ca=ca))


def test_https_under_a_public_url(tmp_path: Path) -> None:
    """With TLS a forwarded port has HTTPS, too; only the public host is told never to use HTTP."""
    certificate = Authority(tmp_path).issue("server")
    settings = Settings(
        "localhost:1",
        address="127.0.0.1:0",
        public_url="https://ml.example",
        tls_cert=certificate.cert,
        tls_key=certificate.key,
    )
    sock, _, exposure = listen(settings)
    own = f"127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    hosts = ("ml.example", "ml.example:443", "localhost:9000", own)
    assert all(exposure.accepts(host) for host in hosts)
    assert {exposure.scheme(host, "https") for host in hosts} == {"https"}
    assert [exposure.always_https(host) for host in hosts] == [True, True, False, False]


def test_the_port_of_the_page_is_not_that_of_the_server(page: WebPage) -> None:
    """A client that connects to the page is told so, and which port it should use."""
    client_calls_the_page(page, Credentials())


def client_calls_the_page(page: WebPage, credentials: Credentials) -> None:
    """A call of a client to the address of the page fails with a message that says what it is."""
    address = page.url.partition("//")[2]
    with (
        Client(address, retry=False, credentials=credentials) as client,
        pytest.raises(ServerUnavailableError, match=r"port of a web page.*50051"),
    ):
        client.get_job("resnet-nightly")


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 70, "\udcc3"])
def test_name_that_no_host_has(host: str) -> None:
    """A host that Python cannot encode is refused like one that cannot be resolved."""
    with pytest.raises(SettingsError, match="cannot be resolved"):
        listen(Settings("localhost:1", address=f"{host}:0"))


def test_port_of_many_digits() -> None:
    """A port that Python does not convert is refused like any other that is too high."""
    with pytest.raises(SettingsError, match="with a port from 0 to 65535"):
        listen(Settings("localhost:1", address="127.0.0.1:" + "1" * 5000))


@pytest.mark.parametrize("options", [(), ("--log-level", "debug")])
def test_taken_port(site: LiveServer, page: WebPage, options: tuple[str, ...]) -> None:
    """A port that another process uses is one line with the option that chooses another, of the page and the server."""
    for command, taken in (("web", site.address), ("serve", page.url.partition("//")[2])):
        done = run(command, "--address", taken, *(options if command == "serve" else ()))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"cannot listen on {taken}: another process uses the port" in done.stderr
        assert "--address" in done.stderr


@pytest.mark.parametrize("kind", SPECIAL)
def test_certificate_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """The page does not wait for a pipe in place of its certificate."""
    path = tmp_path / "file"
    SPECIAL[kind](path)
    with pytest.raises(SettingsError, match=str(path)):
        listen(Settings("localhost:1", address="127.0.0.1:0", tls_cert=path, tls_key=path))
