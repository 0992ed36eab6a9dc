"""The comments of the protos say what a sender must set, and what unset means."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from wattwise.rules import DEFAULTS

PROTOS = Path(__file__).parents[2] / "protos" / "wattwise" / "v1"
# What the comment of a field begins with that a caller may send.
MARKS = (
    "Required.",
    "Required in ",
    "Required unless ",
    "True:",
    "Output only.",
    "Unset:",
    "Empty:",
    "0:",
    "False:",
    "Unspecified:",
)
_FIELD = re.compile(r"(?:(optional|repeated) )?(map<[^>]+>|[\w.]+) (\w+) = \d+;")
_BLOCK = re.compile(r"(message|enum|oneof|service) (\w+) \{(\})?")
_CALL = re.compile(r"rpc (\w+)\((?:stream )?(\w+)\) returns")
_REASON = re.compile(r"ERROR_REASON_\w+")


class Field(NamedTuple):
    """A field of a message, with its comment."""

    owner: str
    name: str
    type: str
    label: str
    comment: str


class Contract(NamedTuple):
    """What the files of the protos declare."""

    fields: list[Field]
    requests: set[str]
    calls: dict[str, tuple[str, str]]


def read_contract() -> Contract:
    """Reads every file, line by line."""
    fields: list[Field] = []
    requests: set[str] = set()
    calls: dict[str, tuple[str, str]] = {}
    service = ""
    for path in sorted(PROTOS.glob("*.proto")):
        blocks: list[tuple[str, str]] = []
        comment: list[str] = []
        for line in map(str.strip, path.read_text().splitlines()):
            if line.startswith("//"):
                comment.append(line[2:].strip())
                continue
            if block := _BLOCK.match(line):
                if not block[3]:
                    blocks.append((block[1], block[2]))
                if block[1] == "service":
                    service = " ".join(comment)
            elif line == "}":
                blocks.pop()
            elif call := _CALL.match(line):
                calls[call[1]] = service, " ".join(comment)
                requests.add(call[2])
            elif (field := _FIELD.match(line)) and blocks[-1][0] in ("message", "oneof"):
                owner = next(name for kind, name in reversed(blocks) if kind == "message")
                label = "oneof" if blocks[-1][0] == "oneof" else field[1] or ""
                fields.append(Field(owner, field[3], field[2], label, " ".join(comment)))
            comment = []
    return Contract(fields, requests, calls)


def sent(contract: Contract) -> set[str]:
    """Returns the messages that a caller may send: the requests, and what they contain."""
    found, todo = set[str](), set(contract.requests)
    while todo:
        found |= todo
        parts = {field.type.rpartition(", ")[2].rstrip(">") for field in contract.fields if field.owner in todo}
        todo = (parts & {field.owner for field in contract.fields}) - found
    return found


def test_fields_that_a_caller_may_send() -> None:
    """Their comments begin with "Required.", "Output only." or what the field means if it is not set."""
    contract = read_contract()
    messages = sent(contract)
    assert {"RegisterJobRequest", "JobSpec", "Measurement", "TrialId"} <= messages
    unmarked = [
        f"{field.owner}.{field.name}: {field.comment}"
        for field in contract.fields
        if field.owner in messages and field.label != "oneof" and not field.comment.startswith(MARKS)
    ]
    assert not unmarked
    optional = [field for field in contract.fields if field.owner in messages and field.label == "optional"]
    assert not [field for field in optional if not field.comment.startswith(("Required", "Output only.", "Unset:"))]


def test_defaults_of_a_job() -> None:
    """The comments of its numbers and of those of every policy begin with the default that server and clients use."""
    described: dict[str, set[object]] = {}
    for field in read_contract().fields:
        if default := re.match(r"Unset: (true|false|[\d.]+)\. ", field.comment):
            described.setdefault(field.name, set()).add(json.loads(default[1]))
    numbers = {name: value for name, value in DEFAULTS.items() if isinstance(value, int | float)}
    assert {name: described.get(name) for name in numbers} == {name: {value} for name, value in numbers.items()}


def test_fields_that_only_the_server_sends() -> None:
    """Output only marks a field of a message that callers send, too; the fields of all others need no mark."""
    contract = read_contract()
    messages = sent(contract)
    assert not [
        f"{field.owner}.{field.name}"
        for field in contract.fields
        if field.owner not in messages and "Output only" in field.comment
    ]


def test_scalar_fields_without_presence() -> None:
    """The comment of such a field names its zero: a server cannot tell an unset one from 0, an empty text or false."""
    scalars = {"bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64"}
    assert not [
        f"{field.owner}.{field.name}"
        for field in read_contract().fields
        if field.type in scalars and not field.label and re.search(r"\bUnset\b", field.comment)
    ]


def test_optional_fields_of_answers() -> None:
    """The comment of a field with presence says what unset means, or that the field is always set."""
    contract = read_contract()
    optional = [field for field in contract.fields if field.owner not in sent(contract) and field.label == "optional"]
    assert optional
    assert not [
        f"{field.owner}.{field.name}" for field in optional if not re.search(r"[Uu]nset|[Aa]lways set", field.comment)
    ]


def test_calls() -> None:
    """The comments of a call and its service say who calls it, what a retry does, and which errors it returns."""
    contract = read_contract()
    declared = set(_REASON.findall((PROTOS / "error_reason.proto").read_text()))
    for name, (service, comment) in contract.calls.items():
        assert "Called by" in service + comment, name
        assert "retr" in (service + comment).lower(), name
        _, errors, listed = comment.partition("Errors: ")
        assert errors, name
        named = re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", listed)
        assert {f"ERROR_REASON_{reason}" for reason in named} <= declared, name
