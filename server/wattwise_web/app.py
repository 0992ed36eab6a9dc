"""The page as an ASGI application: routes, logins, and what protects them."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jinja2
from google.protobuf.json_format import MessageToDict
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from wattwise import v1
from wattwise.errors import (
    CredentialsError,
    DeadlineError,
    InvalidAnswerError,
    InvalidRequestError,
    JobNotFoundError,
    PermissionDeniedError,
    ServerUnavailableError,
    TrialNotFoundError,
    UnauthenticatedError,
    UnsupportedCallError,
    WattwiseError,
)
from wattwise.presentation.quantities import ESTIMATE_MARK, ESTIMATE_NOTE, MINUS, percent
from wattwise.presentation.states import JobTrial
from wattwise.presentation.trial_fields import CSV_HEADING, csv_row
from wattwise.rpc.answers import shown_from

from wattwise_web import live
from wattwise_web.charts.marks import page
from wattwise_web.charts.vega import specification
from wattwise_web.reader import Reader, Visitor, is_old_page
from wattwise_web.sections import Page
from wattwise_web.sessions import Sessions, is_token
from wattwise_web.settings import Exposure, Settings
from wattwise_web.static_files import StaticFiles

log = logging.getLogger("wattwise_web")

_STATIC = Path(__file__).parent / "static"
_TEMPLATES = Path(__file__).parent / "templates"
FRAGMENT = "x-wattwise-fragment"
"""The header with which the page's own script asks for the middle of a page."""
_HEALTH = "/healthz"
_LARGEST_FORM = 8_192
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # Not no-referrer, with which browsers send no origin with forms either.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_ALWAYS_HTTPS = (b"strict-transport-security", b"max-age=31536000")
_STATUS: tuple[tuple[type[WattwiseError], int, str], ...] = (
    (JobNotFoundError, 404, "There is no such job"),
    (TrialNotFoundError, 404, "There is no such trial"),
    (PermissionDeniedError, 403, "Your token does not reach this"),
    (InvalidRequestError, 400, "The address of this page is invalid"),
    (InvalidAnswerError, 502, "The server's answer cannot be shown"),
    (UnsupportedCallError, 502, "The server is too old for this page"),
    (CredentialsError, 502, "The token is not sent"),
    (DeadlineError, 504, "The server takes too long"),
    (ServerUnavailableError, 503, "The server is away"),
)


def templates() -> jinja2.Environment:
    """Returns the templates, in memory; everything that they insert is escaped."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in _TEMPLATES.iterdir()}
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (texts[name], str(_TEMPLATES / name), None)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    # The server's texts are parts of log lines, too, and begin with a small letter.
    found.filters["percent"] = percent
    found.filters["sentence"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    found.filters["markup"] = markup
    found.filters["specification"] = specification
    found.filters["kind"] = lambda section: type(section).__name__
    return found


_CODE = re.compile("`([^`]+)`")
_ESTIMATE = re.compile(rf"(?<!\S){ESTIMATE_MARK}(?=[{MINUS}\d])")


def markup(text: str) -> Markup:
    """Returns the text with the parts in backquotes as code, and with an explanation of the marks of estimates."""
    explained = f'<abbr title="{ESTIMATE_NOTE}">{ESTIMATE_MARK}</abbr>'
    # Not Markup.sub, which escapes what is inserted, too.
    found = _ESTIMATE.sub(explained, _CODE.sub(r"<code>\1</code>", str(escape(text))))
    return Markup(found)  # noqa: S704 - it is escaped


class Application:
    """The application's state and its handlers.

    Args:
        settings: the settings of the command line.
        exposure: who can reach the page, and how.
    """

    def __init__(self, settings: Settings, exposure: Exposure) -> None:
        self._settings = settings
        self._exposure = exposure
        self._root = settings.root
        self._sessions = Sessions(self._forget)
        self.streams = live.Streams()
        self._pace = live.Pace()
        self._templates = templates()
        self._reader: Reader

    def app(self) -> ASGIApp:
        """Returns the application, inside its guard."""
        pages = {
            "/": "jobs",
            "/job": "job",
            "/job/trials": "trials",
            "/compare": "compare",
            "/trial": "trial",
            "/running": "running",
            "/events": "events",
            "/about": "about",
            "/glossary": "glossary",
        }
        routes: list[Any] = [Route(path, self._page(name), name=name) for path, name in pages.items()]
        routes += [
            Route("/job/trials.csv", self._file("trials.csv", "text/csv; charset=utf-8", _csv_lines)),
            Route("/job/trials.json", self._file("trials.json", "application/json", _json_lines)),
            Route("/live", self._live),
            Route("/login", self._login_form),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route(_HEALTH, _health),
            Route("/static/{name:path}", StaticFiles(_STATIC).answer),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={404: self._no_page, 405: self._no_page, Exception: self._broken},
        )
        return Guard(app, self._exposure, self._root)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._reader = Reader(self._settings.server, self._settings.credentials)
        try:
            yield
        finally:
            await self._reader.close()

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def read(request: Request, visitor: Visitor) -> Response:
            begun, view = time.monotonic(), getattr(self._reader, name)
            with shown_from(self._settings.server):
                found: Page = await view(visitor, request.query_params)
                values = {"title": found.title, "info": found.info, "page": found, "here": name}
                answer = self._render(request, "page.html", values)
            if FRAGMENT in request.headers:
                answer.headers["x-wattwise-pause"] = f"{self._pace.pause_after(time.monotonic() - begun):.3f}"
            return answer

        return partial(self._answer, read)

    async def _answer(self, read: Callable[[Request, Visitor], Awaitable[Response]], request: Request) -> Response:
        """Returns what the visitor reads, or the page of a login or of an error."""
        visitor = self._visitor(request)
        if visitor.token is None and self._exposure.needs_login:
            return self._to_login(request)
        try:
            return await read(request, visitor)
        except UnauthenticatedError:
            return self._to_login(request)
        except WattwiseError as error:
            if isinstance(error, InvalidRequestError) and is_old_page(error) and "after" in request.query_params:
                return self._redirect(_without(request, "after"))
            return self._failed(request, error)

    def _visitor(self, request: Request) -> Visitor:
        session = request.cookies.get(self._cookie(request), "")
        return Visitor(self._sessions.token(session) if session else None)

    def _render(self, request: Request, template: str, values: dict[str, Any], status: int = 200) -> Response:
        fragment = FRAGMENT in request.headers
        session = self._visitor(request).token is not None
        now = time.time()
        common = {
            "layout": "fragment.html" if fragment else "base.html",
            "root": self._root,
            "logged_in": session,
            "now": time.strftime("%H:%M:%S UTC", time.gmtime(now)),
            "link": lambda path, **parameters: f"{self._root}{page(path, **parameters)}",
            "info": None,
            "standalone": False,
        }
        headers = {"cache-control": "no-store", "vary": FRAGMENT}
        html = self._templates.get_template(template).render(common | values)
        return HTMLResponse(html, status, headers=headers)

    def _failed(self, request: Request, error: WattwiseError) -> Response:
        status, title = next(
            ((status, title) for kind, status, title in _STATUS if isinstance(error, kind)), (502, "The server refused")
        )
        if status >= 500:
            log.warning("%s: %s", request.url.path, error)
        return self._show_error(request, title, str(error), status, retry=status >= 500)

    async def _no_page(self, request: Request, error: Exception) -> Response:
        status = int(getattr(error, "status_code", 404))
        return self._show_error(request, "There is no such page", "Go to the list of jobs.", status)

    async def _broken(self, request: Request, error: Exception) -> Response:
        del error
        return self._show_error(request, "This page failed", "The log of wattwise web says why.", 500)

    def _show_error(self, request: Request, title: str, message: str, status: int, *, retry: bool = False) -> Response:
        values = {"title": title, "message": message, "here": "", "retry": retry}
        return self._render(request, "error.html", values, status)

    # Logins.

    def _to_login(self, request: Request) -> Response:
        here = f"{request.scope['path']}{'?' + request.url.query if request.url.query else ''}"
        if FRAGMENT in request.headers:
            return PlainTextResponse("log in", 401, headers={"cache-control": "no-store"})
        return self._redirect(f"/login?{urlencode({'next': here})}")

    def _redirect(self, path: str) -> Response:
        return RedirectResponse(f"{self._root}{path}", 303, headers={"cache-control": "no-store"})

    async def _login_form(self, request: Request) -> Response:
        return self._show_login(request, _local(request.query_params.get("next", "/")), "")

    def _show_login(self, request: Request, following: str, fault: str, status: int = 200) -> Response:
        values = {"title": "Log in", "here": "", "next": following, "fault": fault}
        return self._render(request, "login.html", values, status)

    async def _login(self, request: Request) -> Response:  # noqa: PLR0911 - one for each fault
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _LARGEST_FORM:
                    return PlainTextResponse("the form is too large", 413)
        except ClientDisconnect:
            return PlainTextResponse("the form is incomplete", 400)
        form = parse_qs(body.decode("utf-8", "replace"))
        token, following = form.get("token", [""])[0].strip(), _local(form.get("next", ["/"])[0])
        if not is_token(token):
            return self._show_login(
                request, following, "This is not a token: paste what wattwise token create printed.", 400
            )
        try:
            # First, so that nothing is kept of a token that may not read.
            await self._reader.client(Visitor(token)).send(v1.ListJobsRequest(page_size=1))
            info = await self._reader.info(Visitor(token), fresh=True)
        except UnauthenticatedError:
            return self._show_login(request, following, "The server does not accept this token.", 401)
        except PermissionDeniedError:
            text = "This token may not read jobs: use one with the role viewer, operator or admin."
            return self._show_login(request, following, text, 403)
        except WattwiseError as error:
            return self._show_login(request, following, f"The token could not be checked: {error}", 503)
        if info.role in (v1.ROLE_ANYONE, v1.ROLE_UNSPECIFIED) and self._exposure.needs_login:
            self._reader.forget(token)
            text = (
                "The server accepts every caller, so a token proves nothing, and this page is reachable from other "
                "machines: start the server with --tokens."
            )
            return self._show_login(request, following, text, 403)
        self._end_session(request)
        answer = self._redirect(following)
        self._set_cookie(request, answer, self._sessions.open(token), None)
        return answer

    async def _logout(self, request: Request) -> Response:
        self._end_session(request)
        answer = self._redirect("/login")
        self._set_cookie(request, answer, "", 0)
        return answer

    def _end_session(self, request: Request) -> None:
        if session := request.cookies.get(self._cookie(request)):
            self._sessions.close(session)
            self.streams.end_session(session)

    def _cookie(self, request: Request) -> str:
        return "__Host-wattwise" if _scheme(self._exposure, request.scope) == "https" else "wattwise"

    def _set_cookie(self, request: Request, answer: Response, value: str, max_age: int | None) -> None:
        secure = _scheme(self._exposure, request.scope) == "https"
        answer.set_cookie(
            self._cookie(request), value, max_age=max_age, path="/", httponly=True, samesite="lax", secure=secure
        )

    def _forget(self, token: str) -> None:
        self._reader.forget(token)

    # Files and the live stream.

    def _file(
        self, name: str, media_type: str, lines: Callable[[AsyncIterator[JobTrial]], AsyncIterator[str]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns the handler of the trials of a list's filter, read page by page; HEAD gets only the headers."""

        async def read(request: Request, visitor: Visitor) -> Response:
            rows = await self._reader.filtered(visitor, request.query_params)
            headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
            if request.method == "HEAD":
                return Response(None, headers=headers, media_type=media_type)
            return StreamingResponse(lines(rows), media_type=media_type, headers=headers)

        return partial(self._answer, read)

    async def _live(self, request: Request) -> Response:
        visitor = self._visitor(request)
        if visitor.token is None and self._exposure.needs_login:
            return PlainTextResponse("log in", 401)
        session = request.cookies.get(self._cookie(request), "") if visitor.token is not None else ""
        if request.method == "HEAD":
            return Response(None, headers=LiveAnswer.HEADERS, media_type=LiveAnswer.media_type)
        stream = self.streams.open(self._reader, visitor, session)
        if stream is None:
            return PlainTextResponse("too many live streams\n", 429)
        return LiveAnswer(self.streams, stream, lambda: not session or self._sessions.is_open(session))


async def _csv_lines(rows: AsyncIterator[JobTrial]) -> AsyncIterator[str]:
    yield CSV_HEADING
    async for row in rows:
        yield csv_row(row)


async def _json_lines(rows: AsyncIterator[JobTrial]) -> AsyncIterator[str]:
    yield "["
    begun = False
    async for row in rows:
        document = MessageToDict(row.trial, preserving_proto_field_name=True)
        yield f"{',' if begun else ''}\n{json.dumps(document)}"
        begun = True
    yield "\n]\n"


class LiveAnswer(StreamingResponse):
    """A live stream, which is closed with the answer, also if its browser has left before the first byte.

    The generator cannot close it, because then it never starts.
    """

    HEADERS: ClassVar = {"cache-control": "no-store", "x-accel-buffering": "no"}
    media_type = "text/event-stream"

    def __init__(self, streams: live.Streams, stream: live.Stream, is_open: Callable[[], bool]) -> None:
        super().__init__(live.changes(stream, is_open), headers=self.HEADERS)
        self._streams = streams
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._streams.close(self._stream)


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _local(path: str) -> str:
    """Returns a path of this page: anything that would lead elsewhere becomes the first page."""
    good = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    # Browsers resolve these, which would lead out of the page's own path.
    dots = {".", ".."} & set(unquote(urlsplit(path).path).split("/")) if good else ()
    return path if good and not dots and not urlsplit(path).netloc else "/"


def _without(request: Request, name: str) -> str:
    kept = [(key, value) for key, value in request.query_params.multi_items() if key != name]
    return f"{request.scope['path']}{'?' + urlencode(kept) if kept else ''}"


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")


def _host(scope: Scope) -> str:
    return _header(scope, b"host").lower()


def _scheme(exposure: Exposure, scope: Scope) -> str:
    """Returns the scheme by which the browser of a request reaches the page."""
    return exposure.scheme(_host(scope), scope["scheme"])


class Guard:
    """Refuses requests for other hosts and forms of other sites, and adds the security headers to every answer.

    Only `/healthz` is answered under every host name.

    Args:
        app: what is guarded.
        exposure: the hosts, and how browsers reach the page.
        root: the path that browsers see before ours; a proxy may strip it or leave it.
    """

    def __init__(self, app: ASGIApp, exposure: Exposure, root: str) -> None:
        self._app = app
        self._exposure = exposure
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        always_https = self._exposure.always_https(_host(scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [each for each in _HEADERS if each[0] not in present]
                if always_https:
                    added.append(_ALWAYS_HTTPS)
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if fault := self._fault(scope):
            await fault(scope, receive, guarded)
            return
        path: str = scope["path"]
        if self._root and (path == self._root or path.startswith(f"{self._root}/")):
            scope = {**scope, "path": path[len(self._root) :] or "/"}
        await self._app(scope, receive, guarded)

    def _fault(self, scope: Scope) -> Response | None:
        host = _host(scope)
        # Probes use the address of a container or a pod as the host, and learn nothing but that the process runs.
        if not self._exposure.accepts(host) and scope["path"] != _HEALTH:
            text = f"this page is not for the host {host[:200]!r}: see --address and --public-url of wattwise web\n"
            return PlainTextResponse(text, 421)
        own = f"{_scheme(self._exposure, scope)}://{host}"
        if scope["method"] not in ("GET", "HEAD") and _header(scope, b"origin").lower() != own:
            return PlainTextResponse("forms are accepted from this page only\n", 403)
        return None
