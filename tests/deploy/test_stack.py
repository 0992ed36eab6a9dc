"""What the compose file starts, without its containers: a migration, two servers on one database, and their page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from wattwise import Client, Credentials
from wattwise_server.security.tokens import Role

from tests.credentials import Authority, issue
from tests.deploy.files import compose, image_settings
from tests.deploy.options import RUN
from tests.deploy.page import seen, showing
from tests.jobs import job_spec
from tests.ports import hold_port, port_of

pytestmark = pytest.mark.thorough


@pytest.fixture
def secrets(tmp_path: Path, postgres_url: str) -> Path:
    """A folder with what the servers find in theirs, and beside it that of the page, and two tokens."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "database").write_text(f"{postgres_url}\n")
    authority = Authority(tmp_path)
    for service in ("server", "web"):
        (tmp_path / service).mkdir(exist_ok=True)
        pair = authority.issue("issued")
        pair.cert.rename(tmp_path / service / f"{service}.pem")
        pair.key.rename(tmp_path / service / f"{service}.key")
    shutil.copy(authority.file, tmp_path / "web")
    (tmp_path / "token").write_text(issue(folder / "server.tokens", Role.ADMIN, ""))
    (tmp_path / "viewer-token").write_text(issue(folder / "server.tokens", Role.VIEWER, ""))
    return folder


def settings_of(service: str, secrets: Path, addresses: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, with the folder of the secrets and addresses in place of its own."""
    found: dict[str, Any] = compose()["services"][service]
    ours = {name: value for name, value in image_settings().items() if name.startswith("WATTWISE_")}
    inside = {name: value.replace("/run/wattwise", str(secrets)) for name, value in found["environment"].items()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
    return {**clean, **ours, **inside, **addresses}


def run(*words: str, settings: Mapping[str, str]) -> int:
    """The exit status of a command."""
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(command, env=settings, timeout=60, check=False, capture_output=True).returncode


@contextmanager
def serving(secrets: Path) -> Iterator[dict[str, str]]:
    """A server; yields its variables."""
    names = ("WATTWISE_ADDRESS", "WATTWISE_HEALTH_ADDRESS", "WATTWISE_METRICS_ADDRESS")
    with ExitStack() as stack:
        addresses = {name: f"127.0.0.1:{port_of(stack.enter_context(hold_port()))}" for name in names}
        settings = settings_of("server", secrets, addresses)
        server = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", RUN, "serve"], env=settings, stdout=subprocess.PIPE, text=True)
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("wattwise listens on ")
            yield settings
        finally:
            server.terminate()


def shows_jobs(secrets: Path, servers: str) -> None:
    """Start the page, with the address of every interface, ask it as its health check does, and log in."""
    with hold_port() as held:
        inside = image_settings()["WATTWISE_WEB_ADDRESS"]
        address = inside.replace("8080", str(port_of(held)))
        changed = {"WATTWISE_WEB_ADDRESS": address, "WATTWISE_SERVER": servers}
        settings = settings_of("web", secrets / "web", changed)
        program, *words = compose()["services"]["web"]["healthcheck"]["test"][1:]
        assert program == "python"
        check = [sys.executable, *(word.replace("8080", str(port_of(held))) for word in words)]
        with showing(settings):
            subprocess.run(check, env={}, timeout=60, check=True)
            token = (secrets / "viewer-token").read_text()
            url = settings["WATTWISE_WEB_PUBLIC_URL"]
            assert "test-shared" in seen(f"127.0.0.1:{port_of(held)}", url, secrets / "ca.pem", token)
        assert subprocess.run(check, env={}, timeout=60, check=False, capture_output=True).returncode == 1


def test_servers_of_the_compose_file_share_a_database(secrets: Path) -> None:
    """Both are healthy, a client with the authority and a token uses either, each has metrics, the page shows jobs."""
    assert run("migrate", settings=settings_of("migrate", secrets, {})) == 0
    credentials = Credentials(tls_ca=secrets.parent / "ca.pem", token_file=secrets.parent / "token")
    with serving(secrets) as one, serving(secrets) as other:
        for settings in (one, other):
            # As the image's health check: no certificate is needed for it, whatever the variables of the server say.
            assert run("health", settings=settings) == 0
        with Client(one["WATTWISE_ADDRESS"], credentials=credentials) as client:
            client.register_job(job_spec(job_id="test-shared"))
        with Client(other["WATTWISE_ADDRESS"], credentials=credentials) as client:
            assert [row.job.spec.job_id for row in client.jobs()] == ["test-shared"]
        for settings, registered in ((one, "1.0"), (other, "0.0")):
            url = f"http://{settings['WATTWISE_METRICS_ADDRESS']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                metrics = answer.read().decode()
            assert re.search(rf"^wattwise_jobs_registered_total {registered}$", metrics, re.MULTILINE)
        shows_jobs(secrets.parent, f"{one['WATTWISE_ADDRESS']},{other['WATTWISE_ADDRESS']}")
    assert run("health", settings=one) == 1
