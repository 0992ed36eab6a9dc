"""The Dockerfile: what it copies is there, and what the image runs has no rights and no shell."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.deploy.files import ROOT, dockerfile, image_settings, in_build_context
from tests.deploy.options import options_of


def test_sources_are_sent_to_the_engine() -> None:
    """Everything that is copied from the checkout exists and is in the build's context; databases and keys are not."""
    sources = []
    for step in (step for stage in dockerfile() for step in stage if step.name in ("COPY", "ADD")):
        assert step.name == "COPY"
        if not step.rest.startswith("--from="):
            sources += step.words[:-1]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists()
        assert in_build_context(source), source
    for other in ("wattwise.db", ".git/config", ".venv/bin/python", "deploy/secrets/server/server.key", "tests/x.py"):
        assert not in_build_context(other), other
    assert not in_build_context("server/wattwise_server/__pycache__/app.pyc")


def test_sources_are_what_the_wheel_needs() -> None:
    """Every package of the repository that the wheel takes is copied."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    wheel = re.findall(r"^packages = (.*)$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    needed = [file for file in done.stdout.splitlines() if any(file.startswith(f"{p}/") for p in _texts(wheel))]
    assert len(needed) > 100
    copied = [word for stage in dockerfile() for step in stage if step.name == "COPY" for word in step.words[:-1]]
    for file in needed:
        assert any(file.startswith(f"{source}/") for source in copied), file
        assert in_build_context(file), file


def _texts(toml: str) -> list[str]:
    return re.findall(r'"([^"]+)"', toml)


def test_packages_are_checked_by_their_hashes() -> None:
    """All that a server and the page run on comes from the lock, or from the wheel that was just built."""
    runs = [step.rest for stage in dockerfile() for step in stage if step.name == "RUN"]
    installs = [run for run in runs if run.startswith("pip ") and " install " in run]
    assert len(installs) == 2
    for install in installs:
        assert "--require-hashes" in install or "--no-index --no-deps" in install
    lock = (ROOT / "requirements/server.lock").read_text()
    assert "asyncpg==" in lock, "servers in containers share a PostgreSQL"
    for package in ("jinja2", "starlette", "uvicorn"):
        assert f"\n{package}==" in lock, "`wattwise web` is in the image"


def test_base_is_pinned() -> None:
    """Both stages have the same base, with a version."""
    (base,) = (step.rest for step in dockerfile()[0] if step.name == "ARG")
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim", base)
    assert [stage[0].rest for stage in dockerfile()[1:]] == ["${PYTHON} AS build", "${PYTHON}"]


def test_image_needs_no_shell_and_no_root() -> None:
    """The user is a number, programs are started without a shell, and the signal is the one that finishes calls."""
    last = {step.name: step for step in dockerfile()[-1]}
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"].rest)
    assert last["ENTRYPOINT"].words == ["wattwise"]
    assert last["CMD"].words == ["serve"]
    options, _, check = last["HEALTHCHECK"].rest.partition(" CMD ")
    assert check == '["wattwise", "health"]'
    assert "--interval=" in options
    assert last["STOPSIGNAL"].rest == "SIGTERM"
    assert "RUN" not in last
    assert {name for name in image_settings() if name.startswith("WATTWISE_")} <= options_of("serve") | options_of(
        "web"
    )
