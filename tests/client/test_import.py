"""What imports load, and which names they provide."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest
import wattwise
from google.protobuf.descriptor import FileDescriptor
from wattwise import monitor, rpc, v1
from wattwise.errors import OperationOrderError

from tests.client.training.script import StepMonitor, job_spec


def _loaded(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_is_nearly_free() -> None:
    """`import wattwise` loads neither gRPC nor protobuf, nor anything else of ours."""
    loaded = _loaded("import wattwise")
    assert {name for name in loaded if name.startswith("wattwise")} == {"wattwise"}
    assert not {"grpc", "google.protobuf"} & loaded


def test_stubs_come_without_the_client() -> None:
    """`wattwise.v1` loads only the generated code."""
    loaded = {name for name in _loaded("import wattwise.v1") if name.startswith("wattwise")}
    assert {name for name in loaded if not name.startswith("wattwise.v1")} == {"wattwise"}


def test_trainer_needs_no_server_and_no_torch() -> None:
    """Importing the trainer's part loads neither the server's packages nor NVML nor PyTorch."""
    loaded = _loaded("from wattwise import BatchSizeOptimizer, JobSpec, Client")
    assert not {"wattwise_server", "pynvml", "torch", "numpy"} & loaded


def test_client_loads_only_what_it_uses() -> None:
    """Importing the client loads neither the trainer's part nor what only a failed call needs."""
    loaded = _loaded("from wattwise import Client, GpuGroup, JobSpec; Client('localhost:1').close()")
    assert not {"google.rpc.error_details_pb2", "wattwise.training.optimizer"} & loaded


@pytest.mark.parametrize(
    "words",
    [
        *("--version", "--help", "", "job", "jobs", "jobs --help", "jobs lst", "serve --help", "serve --adress x"),
        *("run --help", "migrate --help", "backup --help", "restore --help", "copy --help"),
    ],
)
def test_command_line_loads_no_libraries(words: str) -> None:
    """A help text, the version or an error of the command line needs neither gRPC nor NumPy."""
    loaded = _loaded_by(words)
    assert not {"grpc", "google.protobuf", "numpy", "importlib.metadata", "wattwise.errors"} & loaded


@pytest.mark.parametrize("words", ["--version", "--help", ""])
def test_version_and_help_load_only_the_parser(words: str) -> None:
    """The version and the list of commands load the parser alone, and no slow part of the standard library."""
    loaded = _loaded_by(words)
    assert {name for name in loaded if name.startswith("wattwise")} == {
        "wattwise",
        *(f"wattwise.{name}" for name in ("commands", "commands.main", "commands.parsing", "streams", "variables")),
    }
    assert not {"asyncio", "dataclasses", "inspect", "json", "logging", "ssl"} & loaded


def test_command_that_lists_jobs_needs_no_trainer() -> None:
    """`wattwise jobs` loads the client and the tables: no monitor, no optimizer, and nothing of the server's."""
    loaded = _loaded_by("jobs list --server 127.0.0.1:1")
    assert "wattwise.rpc.client" in loaded
    unneeded = {"numpy", "rich", "wattwise.monitor.gpu", "wattwise.training.optimizer", "wattwise.commands.savings"}
    # It takes as long as all tables, and only --json needs it.
    unneeded.add("google.protobuf.json_format")
    assert not unneeded & loaded
    assert not any(name.startswith("wattwise_") for name in loaded)


def _loaded_by(words: str) -> set[str]:
    """The modules that a command has loaded when it ends."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules)); "
        f"from wattwise.commands.main import main; sys.exit(main({words.split()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def test_stubs_are_complete() -> None:
    """`v1` exports every message, enum, enum value, stub and servicer of the protos."""
    assert not sorted(_generated() - set(dir(v1)))


def _generated() -> set[str]:
    """The names of everything at the top level of the protos."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(v1.__path__, "wattwise.v1."):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(module.name).DESCRIPTOR
            names |= {*file.message_types_by_name, *file.enum_types_by_name}
            names |= {value for enum in file.enum_types_by_name.values() for value in enum.values_by_name}
            for service in file.services_by_name:
                names |= {f"{service}Stub", f"{service}Servicer", f"add_{service}Servicer_to_server"}
    return names


def test_version() -> None:
    """`wattwise.__version__` is the version of the installed distribution."""
    assert wattwise.__version__ == version("wattwise")


def test_public_names_exist() -> None:
    """Every name of `__all__` exists, and a misspelt one raises."""
    assert set(wattwise.__all__) <= set(dir(wattwise))
    assert not {"TYPE_CHECKING", "importlib", "os", "sys"} & set(dir(wattwise))
    assert all(getattr(wattwise, name) is not None for name in wattwise.__all__)
    with pytest.raises(AttributeError, match="BatchSizeOptimiser"):
        _ = wattwise.BatchSizeOptimiser  # type: ignore[attr-defined]  # misspelt on purpose


def test_data_loader_without_pytorch(monkeypatch: pytest.MonkeyPatch, grpc_addr: str) -> None:
    """The error says what to install, and no trial is requested."""
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    bso = wattwise.BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    with pytest.raises(ModuleNotFoundError, match=r"^data_loader\(\) needs PyTorch: pip install torch"):
        wattwise.data_loader(bso, [])
    with pytest.raises(OperationOrderError):
        _ = bso.trial


@pytest.mark.parametrize("package", [wattwise, monitor], ids=lambda package: package.__name__)
def test_type_checkers_know_the_same_names(package: ModuleType) -> None:
    """The imports that type checkers read have the names and modules that are imported on first use."""
    code = ast.parse(inspect.getsource(package))
    # Those of the block `if TYPE_CHECKING`.
    imports = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and node.col_offset]
    assert {name.asname: node.module for node in imports for name in node.names} == vars(package)["_MODULES"]


def test_errors_have_a_module_of_their_own() -> None:
    """An error that is accessed in or imported from `wattwise` raises an error that names its module."""
    assert not hasattr(wattwise, "JobNotFoundError")
    with pytest.raises(AttributeError, match=r"from wattwise\.errors import JobNotFoundError"):
        _ = wattwise.JobNotFoundError  # type: ignore[attr-defined]  # as users of another version write
    with pytest.raises(ImportError, match=r"from wattwise\.errors import JobNotFoundError"):
        from wattwise import JobNotFoundError  # type: ignore[attr-defined]  # noqa: F401, PLC0415 - the same
    with pytest.raises(ImportError, match="cannot import name 'JobNotFound'"):
        from wattwise import JobNotFound  # type: ignore[attr-defined]  # noqa: F401, PLC0415 - misspelt on purpose


def test_messages_come_with_the_calls() -> None:
    """`wattwise.rpc` has the messages, which are loaded on first use."""
    assert rpc.v1 is v1
    assert "google.protobuf" not in _loaded("import wattwise.rpc.address")


def test_trainers_meet_no_messages() -> None:
    """No message is an argument or a result of what a trainer calls, except of the two clients."""
    annotated = {}
    for name in set(wattwise.__all__) - {"Client", "AsyncClient"}:
        value = getattr(wattwise, name)
        annotated[name] = str(getattr(value, "__annotations__", ""))
        for inner, member in inspect.getmembers(value):
            if not inner.startswith("_"):
                function: Any = member.fget if isinstance(member, property) else member
                annotated[f"{name}.{inner}"] = str(getattr(inspect.unwrap(function), "__annotations__", ""))
    assert "Decision | None" in annotated["BatchSizeOptimizer.decision"]
    assert "EndReason" in annotated["BatchSizeOptimizer.close"]
    assert not [name for name, types in annotated.items() if "v1." in types]
