"""The commands of deploy/README.md that create secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.deploy.files import DEPLOY, compose
from tests.deploy.options import RUN
from tests.live_server import LiveServer


def test_secrets_are_created_and_used(tmp_path: Path) -> None:
    """A server with the files of the compose file answers clients with the tokens and the authority only."""
    (commands,) = re.findall(r"```sh\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    script = f'wattwise() {{ "{sys.executable}" -c "{RUN}" "$@"; }}\n{commands}'
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    secrets = tmp_path / "secrets"
    assert secrets.stat().st_mode & 0o077 == 0
    (mount,) = compose()["services"]["server"]["volumes"]
    inside = {file.name for file in (tmp_path / mount.split(":")[0]).iterdir()}
    read = {"database", "server.pem", "server.key", "server.tokens"}
    assert inside == {*read, "server.tokens.lock"}
    for file in (
        *(secrets / "server" / name for name in read),
        secrets / "postgres-password",
        secrets / "grafana-password",
    ):
        assert file.stat().st_mode & 0o777 == 0o444, file
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
        assert listed(*authority, "--token-file", str(secrets / "trainer-token")) == 1
        assert listed("--tls", "--token-file", str(secrets / "admin-token")) == 1
