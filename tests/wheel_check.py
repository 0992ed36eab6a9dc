"""Builds the wheel and uses it in empty environments: with the oldest dependencies, and with the locked ones."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = ("grpcio==1.71.2", "protobuf==5.29.*")
SERVER_ONLY = ("numpy", "aiosqlite", "rich", "filelock", "grpc_health", "grpc_reflection", "prometheus_client")

TRAINER = f"""
import importlib, importlib.util, sys
missing = [name for name in {SERVER_ONLY} if importlib.util.find_spec(name) is None]
assert missing == {list(SERVER_ONLY)}, f"a trainer's installation brings more than it needs: {{missing}} are absent"
import wattwise
assert "grpc" not in sys.modules, "importing wattwise alone must stay cheap"
from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, JobSpec, v1
v1.JobSpec(job_id_prefix="a"), BatchSizeOptimizer, Client, EstimateMonitor(watts=1), JobSpec
for trainer in ("huggingface", "keras", "lightning"):
    try:
        importlib.import_module("wattwise.integrations." + trainer)
    except ModuleNotFoundError as error:
        assert f'pip install "wattwise[{{trainer}}]"' in str(error), error
"""


def main() -> None:
    """Fail at the first check that fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", name, str(ROOT))
        (wheel,) = folder.glob("*.whl")
        python, wattwise = new_environment(folder / "env")
        install(python, wheel, *OLDEST)
        run(python, "-c", TRAINER, cwd=folder)
        run(wattwise, "--version", cwd=folder)
        run(wattwise, "jobs", "list", "--help", cwd=folder)
        for file in filter(Path.is_file, (ROOT / "docs").rglob("*")):
            place = folder / "env/share/wattwise" / file.relative_to(ROOT / "docs")
            assert place.read_bytes() == file.read_bytes(), file
        done = subprocess.run([wattwise, "serve"], capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 2, done
        assert 'pip install "wattwise[server]"' in done.stderr, done
        install(python, f"{wheel}[server]", *OLDEST)
        run(wattwise, "serve", "--help", cwd=folder)
        serve_once(wattwise, folder)
        python, wattwise = new_environment(folder / "locked")
        install(python, "--require-hashes", "--requirement", ROOT / "requirements/server.lock")
        install(python, "--no-deps", wheel)
        serve_once(wattwise, folder)
        run(wattwise, "web", "--help", cwd=folder)
        run(python, "-c", "from wattwise_web.sections import glossary; assert glossary()", cwd=folder)
    sys.stdout.write("the wheel works\n")


def new_environment(folder: Path) -> tuple[Path, Path]:
    """The paths of Python and of `wattwise` in a new environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin/python", folder / "bin/wattwise"


def install(python: Path, *arguments: str | Path) -> None:
    """Install packages."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def serve_once(wattwise: Path, folder: Path) -> None:
    """Start the installed server, which must find its migrations, and stop it."""
    with subprocess.Popen(
        [wattwise, "serve", "--address", "127.0.0.1:0"], stdout=subprocess.PIPE, cwd=folder
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"wattwise listens on 127.0.0.1:")
        server.terminate()
        assert server.wait(timeout=20) == 0


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, cwd=cwd)


if __name__ == "__main__":
    main()
