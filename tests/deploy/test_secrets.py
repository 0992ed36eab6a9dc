"""The commands of deploy/README.md that create secrets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
import yaml
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate
from wattwise import Credentials, v1

from tests.deploy.files import EXAMPLE, commands_for_secrets, compose, containers, resources, variables_of
from tests.deploy.options import RUN
from tests.live_server import LiveServer
from tests.people import PeopleStub

pytestmark = pytest.mark.thorough


def host_of(address: str) -> str:
    """The host of a server's address, as its certificate has it."""
    return address.removeprefix("dns:///").rpartition(":")[0]


def names_in(certificate: Path) -> list[str]:
    """The host names that a certificate is for."""
    names = load_pem_x509_certificate(certificate.read_bytes()).extensions.get_extension_for_class(
        SubjectAlternativeName
    )
    return names.value.get_values_for_type(DNSName)


def _run(commands: str, folder: Path) -> None:
    script = f'wattwise() {{ "{sys.executable}" -c "{RUN}" "$@"; }}\n{commands}'
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, capture_output=True, timeout=60)


def test_secrets_are_created_and_used(tmp_path: Path) -> None:
    """A server with the files of the compose file answers clients with the tokens and the authority only."""
    commands, _ = commands_for_secrets()
    _run(commands, tmp_path)
    secrets = tmp_path / "secrets"
    assert secrets.stat().st_mode & 0o077 == 0
    (mount,) = compose()["services"]["server"]["volumes"]
    inside = {file.name for file in (tmp_path / mount.split(":")[0]).iterdir()}
    read = {"database", "server.pem", "server.key", "server.tokens"}
    assert inside == {*read, "server.tokens.lock"}
    (mount,) = compose()["services"]["web"]["volumes"]
    of_the_page = tmp_path / mount.split(":")[0]
    assert {file.name for file in of_the_page.iterdir()} == {"ca.pem", "web.pem", "web.key"}
    for file in (
        *(secrets / "server" / name for name in read),
        *of_the_page.iterdir(),
        secrets / "postgres-password",
        secrets / "grafana-password",
    ):
        assert file.stat().st_mode & 0o777 == 0o444, file
    page = compose()["services"]["web"]["environment"]
    assert host_of(page["WATTWISE_SERVER"]) in names_in(secrets / "server/server.pem")
    assert urlsplit(page["WATTWISE_WEB_PUBLIC_URL"]).hostname in names_in(of_the_page / "web.pem")
    password = (secrets / "postgres-password").read_text().strip()
    assert (secrets / "server/database").read_text() == f"postgresql://wattwise:{password}@postgres/wattwise\n"

    def listed(*options: str) -> int:
        command = [sys.executable, "-c", RUN, "jobs", "list", "--server", server.address, *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_TLS")}
        return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60).returncode

    with LiveServer(tmp_path) as server:
        files = secrets / "server"
        tls = ("--tls-cert", str(files / "server.pem"), "--tls-key", str(files / "server.key"))
        server.start(*tls, "--tokens", str(files / "server.tokens"))
        authority = ("--tls-ca", str(secrets / "ca.pem"))
        assert listed(*authority, "--token-file", str(secrets / "admin-token")) == 0
        assert listed(*authority, "--token-file", str(secrets / "viewer-token")) == 0
        assert listed(*authority, "--token-file", str(secrets / "trainer-token")) == 1
        assert listed("--tls", "--token-file", str(secrets / "admin-token")) == 1


def test_secrets_of_the_cluster(tmp_path: Path) -> None:
    """The kustomization's files exist; certificates have the names of servers and page; a server takes tokens."""
    _, commands = commands_for_secrets()
    shutil.copytree(EXAMPLE, tmp_path / "kubernetes/example")
    for role in ("owner", "serve"):
        (tmp_path / f"{role}-password").write_text(f"of-{role}\n")
    _run(commands, tmp_path)
    ours = tmp_path / "kubernetes/ours"
    secrets = ours / "secrets"
    assert secrets.stat().st_mode & 0o077 == 0
    named = yaml.safe_load((ours / "kustomization.yaml").read_text())["secretGenerator"]
    for entry in (entry for secret in named for entry in secret["files"]):
        assert (ours / entry.rpartition("=")[2]).is_file(), entry
    found = resources(EXAMPLE)
    (page,) = (each for each in containers(found) if each["name"] == "web")
    variables = variables_of(page, found)
    assert host_of(variables["WATTWISE_SERVER"]) in names_in(secrets / "server.pem")
    assert urlsplit(variables["WATTWISE_WEB_PUBLIC_URL"]).hostname in names_in(secrets / "web.pem")
    target = "db.example/wattwise?target_session_attrs=read-write\n"
    assert (secrets / "database").read_text() == f"postgresql://wattwise:of-serve@{target}"
    assert (secrets / "database-owner").read_text() == f"postgresql://wattwise_owner:of-owner@{target}"
    with LiveServer(tmp_path) as server:
        tls = ("--tls-cert", str(secrets / "server.pem"), "--tls-key", str(secrets / "server.key"))
        server.start(*tls, "--tokens", str(secrets / "server.tokens"))
        for role in ("admin", "viewer"):
            credentials = Credentials(token_file=str(secrets / f"{role}-token"), tls_ca=str(secrets / "ca.pem"))
            secure = credentials.channel_credentials()
            token = credentials.bearer_token(server.address)
            assert secure is not None
            assert token is not None
            name = (("grpc.ssl_target_name_override", "wattwise.wattwise.svc"),)
            with grpc.secure_channel(server.address, secure, options=name) as channel:
                PeopleStub(channel).ListJobs(v1.ListJobsRequest(), metadata=token.metadata(), timeout=60)
