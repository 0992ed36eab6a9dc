"""The page in its own process, with the variables of a container, and a visitor of it."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.deploy.options import RUN


@contextmanager
def showing(settings: Mapping[str, str]) -> Iterator[None]:
    """A page that listens by the public URL of its variables."""
    command = [sys.executable, "-c", RUN, "web"]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            said = f"wattwise web shows {settings['WATTWISE_SERVER']} at {settings['WATTWISE_WEB_PUBLIC_URL']}/\n"
            assert page.stdout.readline() == said
            yield
        finally:
            page.terminate()
        assert page.wait(timeout=30) == 0


def seen(address: str, public_url: str, authority: Path, token: str) -> str:
    """The page of jobs after a login, to a browser that finds the host of the public URL at an address."""
    url = urlsplit(public_url)
    certified = {"sni_hostname": url.hostname}
    trust = ssl.create_default_context(cafile=str(authority))
    with httpx.Client(base_url=f"https://{address}", headers={"Host": url.netloc}, verify=trust, timeout=30) as web:
        refused = web.get("/", extensions=certified)
        assert (refused.status_code, refused.headers["location"]) == (303, "/login?next=%2F")
        form = {"token": token, "next": "/"}
        entered = web.post("/login", data=form, headers={"Origin": public_url}, extensions=certified)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "; Secure" in entered.headers["set-cookie"]
        shown = web.get("/", extensions=certified)
        assert shown.status_code == 200
        return shown.text
