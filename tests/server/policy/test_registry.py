"""The registry finds the policies, and a new one is one file and one message."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wattwise
import wattwise_server
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.internal import encoder, wire_format
from wattwise import drafts, v1
from wattwise.rules import PARAMETERS
from wattwise_server.policy.registry import POLICIES

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused

_FOUND = "from wattwise_server.policy.registry import POLICIES; print(*POLICIES)"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A copy of the server's package, to put policies into."""
    copy = tmp_path / "wattwise_server"
    shutil.copytree(Path(wattwise_server.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def import_registry(server: Path) -> subprocess.CompletedProcess[str]:
    """Imports the registry of a copied package; returns what it prints."""
    return subprocess.run(
        [sys.executable, "-c", _FOUND],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(server.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_file_is_a_policy(server: Path) -> None:
    """A new file with a `POLICY` is found under the file's name, beside the others."""
    (server / "policy" / "mine.py").write_text("from wattwise_server.policy.gts import Gts\n\nPOLICY = Gts()\n")
    found = import_registry(server)
    assert (found.stderr, set(found.stdout.split())) == ("", {*POLICIES, "mine"})


def test_file_without_a_policy_is_ignored(server: Path) -> None:
    """A file without a `POLICY` registers nothing."""
    (server / "policy" / "helping.py").write_text("FACTOR = 2\n")
    assert set(import_registry(server).stdout.split()) == set(POLICIES)


def test_file_that_fails_is_named(server: Path) -> None:
    """A policy that cannot be imported is reported with its file and the error."""
    (server / "policy" / "mine.py").write_text("POLICY = Mine()\n")
    error = import_registry(server).stderr
    assert "policy/mine.py" in error
    assert "NameError: name 'Mine' is not defined" in error


@pytest.mark.parametrize("module", ["stopping", "decisions", "search", "gts", "knowledge_gradient"])
def test_any_module_can_be_imported_first(module: str) -> None:
    """No import of a module of the policies depends on an earlier one, although some use the registry."""
    subprocess.run([sys.executable, "-c", f"import wattwise_server.policy.{module}"], check=True)


def test_policies_are_those_of_the_wire() -> None:
    """Each policy is a field of PolicySpec, and the parameters of JobSpec are the fields of the messages there."""
    assert drafts.POLICIES.keys() == POLICIES.keys()
    assert {name for names in drafts.POLICIES.values() for name in names} == set(PARAMETERS)


def documented() -> tuple[str, int, str, str]:
    """The policy that docs/policies.md adds: its name, its number in PolicySpec, its file and its limit."""
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text()
    value = re.search(r"```proto\n.*?GreedySpec (\w+) = (\d+);.*?```", page, re.DOTALL)
    file, limit = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert value
    return value[1], int(value[2]), file, limit


def add_policy(stub: Path, name: str, number: int) -> None:
    """Adds a policy to a generated stub, as `make protos` does; protoc is no test dependency."""
    text = stub.read_text()
    (literal,) = re.findall(r"AddSerializedFile\((b'.*')\)", text)
    file = FileDescriptorProto.FromString(ast.literal_eval(literal))
    messages = {message.name: message for message in file.message_type}
    new = file.message_type.add(name="GreedySpec")
    (field,) = (field for field in messages["GtsSpec"].field if field.name == "num_explorations")
    new.field.add().CopyFrom(field)
    new.field[0].number, new.field[0].oneof_index = 1, 0
    new.oneof_decl.add(name="_num_explorations")
    case = messages["PolicySpec"].field.add()
    case.CopyFrom(messages["PolicySpec"].field[0])
    case.name, case.number, case.json_name, case.type_name = name, number, name, ".wattwise.v1.GreedySpec"
    # The places of the messages in the file are only known to protoc; the program reads none of them.
    stub.write_text(re.sub(r"\n( +)_globals\[.*", r"\n\1pass", text.replace(literal, repr(file.SerializeToString()))))


def test_documented_policy_can_be_added(server: Path, tmp_path: Path) -> None:
    """The policy of docs/policies.md registers jobs, refuses a field, chooses batch sizes and shows its beliefs."""
    name, number, file, limit = documented()
    shutil.copytree(Path(wattwise.__file__).parent, tmp_path / "wattwise")
    add_policy(tmp_path / "wattwise" / "v1" / "job_pb2.py", name, number)
    rules = tmp_path / "wattwise" / "rules.py"
    before, after = rules.read_text().split("\n\n\ndef _id_faults(")
    rules.write_text(f"{before}\n{limit}\n\ndef _id_faults({after}")
    (server / "policy" / f"{name}.py").write_text(file)

    def policy(num_explorations: int) -> v1.PolicySpec:
        # This process has no stub of the policy.
        parameters = v1.PruningGtsSpec(num_pruning_rounds=num_explorations).SerializeToString()
        tag = encoder.TagBytes(number, wire_format.WIRETYPE_LENGTH_DELIMITED)
        return v1.PolicySpec.FromString(tag + bytes([len(parameters)]) + parameters)

    with LiveServer(tmp_path) as live:
        live.environment["PYTHONPATH"] = str(tmp_path)
        live.start()
        with refused() as refusal:
            Trainer(live.trainer, policy=policy(0))
        assert list(refusal.faults) == [f"job.policy.{name}.num_explorations"]
        job = Trainer(live.trainer, policy=policy(1))
        chosen = []
        for cost in (40.0, 20.0, 30.0, 50.0, 25.0):
            trial = job.next()
            chosen.append(trial.batch_size)
            job.report(trial, cost)
        assert chosen == [8, 16, 32, 64, 16]
        known = live.admin.GetJob(v1.GetJobRequest(job_id=job.job_id))
        shown = known.details
        assert (known.job.spec.policy, known.job.min_cost) == (policy(1), 20.0)
        assert known.job.policy_state.WhichOneof("state") is None
        assert shown.policy_details.WhichOneof("details") is None
        states = [state for state in shown.batch_size_states if state.HasField("expected_cost")]
        assert [(state.batch_size, state.expected_cost) for state in states] == [(8, 40.0), (16, 22.5), (32, 30.0)]
