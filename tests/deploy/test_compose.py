"""The compose file: every name in it exists, and its containers have no more rights than they need."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.deploy.files import DEPLOY, ROOT, commands_for_secrets, compose, dockerfile, image_settings
from tests.deploy.options import options_of

# What `docker compose` knows of a service, as far as it is used here.
KEYS = {
    "build",
    "cap_drop",
    "command",
    "depends_on",
    "deploy",
    "environment",
    "healthcheck",
    "image",
    "networks",
    "ports",
    "read_only",
    "restart",
    "secrets",
    "security_opt",
    "shm_size",
    "stop_grace_period",
    "tmpfs",
    "volumes",
}


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    """The services by name."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def made_by_the_readme() -> set[str]:
    """The secrets that the commands of the README create."""
    commands, _ = commands_for_secrets()
    return set(re.findall(r"secrets/[\w./-]+", commands))


def test_every_name_exists(services: dict[str, dict[str, Any]]) -> None:
    """Networks, volumes, secrets and files that services use exist, and none is unused."""
    whole = compose()
    assert whole.keys() == {"name", "x-server", "services", "networks", "volumes", "secrets"}
    used: dict[str, set[str]] = {"networks": set(), "volumes": set(), "secrets": set()}
    for service in services.values():
        assert service.keys() <= KEYS
        used["networks"] |= set(service["networks"])
        used["secrets"] |= set(service.get("secrets", ()))
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert mode == ["ro"]
                path = source.removeprefix("./")
                assert path in made_by_the_readme() or (DEPLOY / source).is_file(), source
            else:
                used["volumes"].add(source)
    for kind, names in used.items():
        assert names == whole[kind].keys()
    for secret in whole["secrets"].values():
        assert secret["file"].removeprefix("./") in made_by_the_readme()


def test_files_inside_exist(services: dict[str, dict[str, Any]]) -> None:
    """Each file that a variable names is mounted there."""
    for service in services.values():
        for value in service.get("environment", {}).values():
            path = value.removeprefix("@")
            if not path.startswith("/"):
                continue
            folder, _, name = path.rpartition("/")
            if folder == "/run/secrets":
                assert name in service["secrets"]
            else:
                (source,) = (each.split(":")[0] for each in service["volumes"] if each.split(":")[1] == folder)
                assert f"{source.removeprefix('./')}/{name}" in made_by_the_readme()


def test_commands_and_variables_exist(services: dict[str, dict[str, Any]]) -> None:
    """The services of the image run a command of `wattwise` with variables that this command knows."""
    ours = {name: service for name, service in services.items() if service["image"] == "wattwise"}
    assert ours.keys() == {"server", "migrate", "web"}
    for service in ours.values():
        (command,) = service["command"]
        assert service["environment"].keys() <= options_of(command)
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_start_waits_for_what_it_needs(services: dict[str, dict[str, Any]]) -> None:
    """The database answers before it is migrated, once, and servers start after that; others have a health check."""
    for name, service in services.items():
        for other, wish in service.get("depends_on", {}).items():
            if wish["condition"] == "service_healthy":
                assert services[other]["healthcheck"]["test"][0] == "CMD"
            assert set(service["networks"]) & set(services[other]["networks"]), (name, other)
    assert services["server"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["restart"] == "on-failure"
    assert [step for step in dockerfile()[-1] if step.name == "HEALTHCHECK"]
    unchecked = {name for name, service in services.items() if "healthcheck" not in service}
    assert unchecked == {"server"}, "which has the image's"


def test_containers_have_no_rights(services: dict[str, dict[str, Any]]) -> None:
    """All containers have read-only files and gain no rights; those that need not change users have none."""
    for name, service in services.items():
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert ("cap_drop" in service) is (name != "postgres")
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    assert compose()["networks"]["storage"] == {"internal": True}
    assert services["postgres"]["networks"] == ["storage"]


def test_every_server_finds_a_port(services: dict[str, dict[str, Any]]) -> None:
    """There are two servers, a port of the host for each, and time for the last calls of both."""
    server = services["server"]
    assert server["deploy"]["replicas"] == 2
    (port,) = server["ports"]
    _, first, last, inside = re.split("[:-]", port)
    assert int(last) - int(first) >= server["deploy"]["replicas"] - 1
    assert inside == image_settings()["WATTWISE_ADDRESS"].rpartition(":")[2]
    # --grace-seconds is 10, and 2 more until connections are closed.
    assert int(server["stop_grace_period"].removesuffix("s")) > 12


def test_page_is_where_browsers_look_for_it(services: dict[str, dict[str, Any]]) -> None:
    """The public URL is that of the port of the host, with TLS, and the page listens on the other side of it."""
    page = services["web"]
    url = urlsplit(page["environment"]["WATTWISE_WEB_PUBLIC_URL"])
    assert (url.scheme, url.hostname) == ("https", "localhost")
    (port,) = page["ports"]
    inside = image_settings()["WATTWISE_WEB_ADDRESS"].rpartition(":")[2]
    assert port == f"127.0.0.1:{url.port}:{inside}"


def test_page_has_no_secret_of_the_servers(services: dict[str, dict[str, Any]]) -> None:
    """It has a folder and a network without token, database and the servers' key, and nothing turns TLS off."""
    page, server = services["web"], services["server"]
    (mount,) = page["volumes"]
    folder = mount.split(":")[0].removeprefix("./")
    inside = {path for path in made_by_the_readme() if re.match(rf"{folder}/\w", path)}
    assert inside == {f"{folder}/ca.pem", f"{folder}/web.key", f"{folder}/web.pem"}
    assert not set(page["volumes"]) & set(server["volumes"])
    assert "secrets" not in page
    assert page["networks"] == ["servers"]
    assert not [name for name in page["environment"] if re.search("TOKEN|INSECURE|DATABASE", name)]


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="needs docker compose")
def test_compose_accepts_the_file() -> None:
    """Docker's own tool accepts the file."""
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=DEPLOY, check=True, timeout=60)
