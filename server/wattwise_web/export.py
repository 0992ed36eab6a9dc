"""The page of a job as one HTML file, with its style, its charts and the scripts that draw them."""

from __future__ import annotations

import time
from pathlib import Path

from markupsafe import Markup
from wattwise.errors import WattwiseError
from wattwise.rpc.credentials import BearerToken

from wattwise_web.app import templates
from wattwise_web.reader import Reader, Visitor
from wattwise_web.settings import Settings

_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.min.js", "app.js")


async def export(settings: Settings, job_id: str, file: Path) -> int:
    """Writes the page of a job into a file.

    Args:
        settings: the server, and the credentials with the token.
        job_id: the job.
        file: the file to write.

    Returns:
        Its size in bytes.

    Raises:
        WattwiseError: the job cannot be read, or the file cannot be written.
    """
    credentials, reader = settings.credentials, Reader(settings.server, settings.credentials)
    try:
        given = credentials.token or credentials.token_file
        bearer = BearerToken(credentials.token, credentials.token_file) if given else None
        token = bearer.metadata()[0][1].removeprefix("Bearer ") if bearer else None
        page = await reader.job(Visitor(token), {"id": job_id})
    finally:
        await reader.close()
    html = (
        templates()
        .get_template("page.html")
        .render(
            title=page.title,
            info=page.info,
            page=page,
            layout="standalone.html",
            root="",
            logged_in=False,
            here="job",
            now=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            link=lambda _path, **_parameters: "",
            standalone=True,
            style=Markup((_STATIC / "app.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
            scripts=[_script(_STATIC / name) for name in _SCRIPTS],
        )
    )
    data = html.encode()
    try:
        file.write_bytes(data)  # noqa: ASYNC240 - nothing else runs
    except OSError as error:
        raise WattwiseError(f"cannot write {file}: {error.strerror}") from None
    return len(data)


def _script(file: Path) -> Markup:
    """Returns the text of a script, changed so that it cannot close its own element."""
    return Markup(file.read_text(encoding="utf-8").replace("</script", "<\\/script"))  # noqa: S704 - our own file
