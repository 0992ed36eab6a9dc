"""Runs the steps of the Dockerfile without a container engine, then the server and the page that they install.

Folders of the image lie in a temporary folder. Where this runs as root, both have the image's user, who can write
nothing but its volume; otherwise it is this user. The Python is the one at hand, or a copy of it if it lies in a folder
that the image's user cannot enter.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.files import ROOT, dockerfile, image_settings, in_build_context
from tests.ports import hold_port, port_of

FOLDERS = ("/opt/wattwise", "/var/lib/wattwise", "/wheels", "/state")
"""Of the image, as far as its steps name them."""


def main() -> None:
    """Fail at the first step that fails."""
    with tempfile.TemporaryDirectory() as name:
        image = Path(name)
        # For the image's user.
        image.chmod(0o755)
        base = base_of(image)
        build(image, base)
        run(image, base)
    say("the Dockerfile's steps work")


@dataclass(frozen=True, slots=True)
class Base:
    """The Python in place of the base image's, and the variables that its programs need."""

    python: Path
    settings: Mapping[str, str]


def base_of(image: Path) -> Base:
    """The Python at hand, or a copy of it that every user can start."""
    prefix, program = Path(sys.base_prefix).resolve(), f"bin/python3.{sys.version_info.minor}"
    if os.getuid() != 0 or all(folder.stat().st_mode & stat.S_IXOTH for folder in prefix.parents):
        return Base(Path(sys.executable), {})
    copy = image / "python"
    ignored = shutil.ignore_patterns("site-packages", "test", "__pycache__")
    shutil.copytree(prefix, copy, symlinks=True, ignore=ignored)
    return Base(copy / program, {"LD_LIBRARY_PATH": str(copy / "lib")})


def build(image: Path, base: Base) -> None:
    """Follow the instructions of both stages."""
    # Installed packages are those of the steps, and not of the checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(base.settings)
    subprocess.run([base.python, "-m", "venv", image / "base"], check=True, env=environment)
    environment["PATH"] = f"{image / 'base/bin'}:{environment['PATH']}"
    subprocess.run(
        ["pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "pip"], check=True, env=environment
    )
    source = image / "src"
    source.mkdir()
    for step in (step for stage in dockerfile()[1:] for step in stage):
        if step.name == "COPY":
            say(f"COPY {step.rest}")
            flags = [word for word in step.words if word.startswith("--")]
            *sources, target = [word for word in step.words if not word.startswith("--")]
            if any(flag.startswith("--from=") for flag in flags):
                copy_within(image, sources[0], target)
            for each in sources if not flags else ():
                copy_from_checkout(each, source / target)
        elif step.name == "RUN":
            command = mapped(image, step.rest)
            if os.getuid() != 0:
                command = re.sub(r" -[og] \d+", "", command)
            say(f"RUN {command}")
            subprocess.run(command, shell=True, check=True, cwd=source, env=environment)  # noqa: S602 - as an engine does
    # Nothing of it is in the image's last stage.
    shutil.rmtree(source)
    shutil.rmtree(image / "wheels")


def copy_within(image: Path, source: str, target: str) -> None:
    """Copy from the first stage, which has the same folders."""
    if source != target:
        shutil.copytree(mapped(image, source), mapped(image, target))
        if os.getuid() == 0:
            found = Path(mapped(image, source)).stat()
            os.chown(mapped(image, target), found.st_uid, found.st_gid)


def copy_from_checkout(source: str, target: Path) -> None:
    """Copy what .dockerignore lets through."""
    found = ROOT / source
    if found.is_file():
        # To a file of the same name, or into a folder.
        place = target if target.name == found.name else target / found.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, place)
        return
    for file in found.rglob("*"):
        if file.is_file() and in_build_context(str(file.relative_to(ROOT))):
            place = target / file.relative_to(found)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)


def run(image: Path, base: Base) -> None:
    """Start the server as the image does, ask it as its health check does, open the page on it, and stop both."""
    last = {step.name: step for step in dockerfile()[-1]}
    calls, probes, metrics, pages = (hold_port() for _ in range(4))
    settings = {name: mapped(image, value) for name, value in image_settings().items()}
    settings["PATH"] = settings["PATH"].replace("$PATH", os.environ["PATH"])
    settings |= {
        **base.settings,
        "WATTWISE_ADDRESS": f"127.0.0.1:{port_of(calls)}",
        "WATTWISE_HEALTH_ADDRESS": f"127.0.0.1:{port_of(probes)}",
        "WATTWISE_METRICS_ADDRESS": f"127.0.0.1:{port_of(metrics)}",
        "WATTWISE_WEB_ADDRESS": f"127.0.0.1:{port_of(pages)}",
        "WATTWISE_SERVER": f"127.0.0.1:{port_of(calls)}",
    }
    user = int(last["USER"].words[0].partition(":")[0]) if os.getuid() == 0 else os.getuid()
    entry, check = last["ENTRYPOINT"].words, last["HEALTHCHECK"].rest.partition(" CMD ")[2]
    say(f"as user {user}: {' '.join(entry + last['CMD'].words)}")
    assert ask(image, [*entry, "--version"], settings, user) == 0
    assert refuses(image, settings, entry, user)
    before = written(image)
    health = re.findall(r'"([^"]+)"', check)
    with subprocess.Popen(
        [program(image, entry[0]), *entry[1:], *last["CMD"].words],
        env=settings,
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        **as_user(user),
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("wattwise listens on"), line
        assert ask(image, health, settings, user) == 0
        read(image, [*entry, "web"], settings, user)
        server.send_signal(signal.Signals[last["STOPSIGNAL"].rest])
        assert server.wait(timeout=30) == 0
    assert ask(image, health, settings, user) == 1
    new = written(image) - before
    assert new, "the database"
    assert all(path.is_relative_to(image / "var/lib/wattwise") for path in new), new
    for held in (calls, probes, metrics, pages):
        held.close()


def refuses(image: Path, settings: Mapping[str, str], entry: list[str], user: int) -> bool:
    """Whether the image's own addresses, beyond loopback, need TLS: the server's with tokens, the page's with a URL."""
    names = ("WATTWISE_ADDRESS", "WATTWISE_WEB_ADDRESS")
    open_to_all = {**settings, **{name: image_settings()[name] for name in names}}
    return [ask(image, [*entry, command], open_to_all, user) for command in ("serve", "web")] == [1, 1]


def read(image: Path, command: list[str], settings: Mapping[str, str], user: int) -> None:
    """Start the page, open it and one of its files, and stop it."""
    say(f"as user {user}: {' '.join(command)}")
    words = [program(image, command[0]), *command[1:]]
    with subprocess.Popen(words, env=settings, cwd="/", stdout=subprocess.PIPE, text=True, **as_user(user)) as page:
        assert page.stdout is not None
        line = page.stdout.readline()
        assert line.startswith("wattwise web shows "), line
        url = line.split()[-1]
        for path, text in (("healthz", "ok"), ("", "<title>"), ("static/app.css", "{")):
            with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:  # noqa: S310 - its own
                assert text in answer.read().decode(), path
        page.terminate()
        assert page.wait(timeout=30) == 0


def ask(image: Path, command: list[str], settings: Mapping[str, str], user: int) -> int:
    """The exit status of a command in the image."""
    words = [program(image, command[0]), *command[1:]]
    return subprocess.run(words, env=settings, cwd="/", timeout=60, check=False, **as_user(user)).returncode


def program(image: Path, name: str) -> str:
    """A program of the image."""
    return str(image / "opt/wattwise/bin" / name)


def as_user(user: int) -> dict[str, Any]:
    """Arguments of subprocess; without rights only root can change users."""
    return {"user": user, "group": user, "umask": 0o077} if os.getuid() == 0 else {}


def written(image: Path) -> set[Path]:
    """All files of the image."""
    return {path for path in image.rglob("*") if stat.S_ISREG(path.lstat().st_mode)}


def mapped(image: Path, text: str) -> str:
    """The text with the image's folders in place of those of this machine."""
    for folder in FOLDERS:
        text = re.sub(rf"(?<![\w.]){folder}\b", f"{image}{folder}", text)
    return text


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
