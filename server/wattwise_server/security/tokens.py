"""Bearer tokens: their roles, how they are verified, and the line of the token file.

A token is `ww_<id>_<secret>`. Its line in the file is a JSON object:

    {"version": 1, "id": "5f0c2a9be1d4", "role": "trainer", "prefix": "team-a-", "sha256": "9c1b…",
     "created": "2026-01-31T12:00:00Z", "expires": null}

The id is not secret and names the token in logs. `sha256` is the hash of the whole token in hexadecimal digits. One
pass of SHA-256 is enough: slow hashes protect passwords, which can be guessed; a random secret of 256 bits cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

from wattwise.files import parse_json
from wattwise.rules import identifier_fault

VERSION = 1

_TIME = "%Y-%m-%dT%H:%M:%S%z"
_KEYS = ("version", "id", "role", "prefix", "sha256", "created", "expires")
_NO_HASH = "0" * 64


class Role(IntEnum):
    """What a token may call; an operator may do what a viewer and a trainer may."""

    VIEWER = 0
    """The calls of JobReader, which change nothing. Its prefix may be empty, which gives access to every job."""

    TRAINER = 1
    """The calls of BatchSizeOptimizer."""

    OPERATOR = 2
    """The calls of both services."""

    ADMIN = 3
    """All calls; its prefix may be empty as well."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored: enough to verify it, not enough to use it.

    Attributes:
        id: Names it in the log and on the command line.
        role: What it may call.
        prefix: The job ids that it may access start with this; empty, for admins and viewers only, means every job.
        sha256: Hash of the token, in hexadecimal digits.
        created: When it was created.
        expires: When it expires; None means never.
    """

    id: str
    role: Role
    prefix: str
    sha256: str
    created: datetime
    expires: datetime | None = None

    def __str__(self) -> str:
        reach = f"of {self.prefix!r}" if self.prefix else "of every job"
        return f"token {self.id} ({self.role.name.lower()} {reach})"


def prefix_fault(prefix: str, role: Role) -> str | None:
    """Returns what is wrong with a prefix for a role; None if it is valid."""
    if not prefix and role not in (Role.ADMIN, Role.VIEWER):
        return f"is empty, which only an admin or viewer token may have; give one of role {role.name.lower()} a prefix"
    return identifier_fault(prefix)


def new_token(role: Role, prefix: str, lifetime: timedelta | None) -> tuple[str, Token]:
    """Creates a token; returns its text, which is not stored anywhere, and what to store."""
    token_id = secrets.token_hex(6)
    secret = secrets.token_hex(32)  # pragma: no mutate: without a number it is as long
    text = f"ww_{token_id}_{secret}"
    created = datetime.now(timezone.utc).replace(microsecond=0)
    return text, Token(token_id, role, prefix, _hash(text), created, created + lifetime if lifetime else None)


def verified(tokens: Mapping[str, Token], text: str) -> Token | None:
    """Returns the token with this text; None if it is not among the tokens."""
    token = tokens.get(text[3:15])
    # In constant time, and for unknown ids too: the time of a refusal reveals neither which ids exist nor how much of
    # a hash matches.
    same = hmac.compare_digest(_hash(text), token.sha256 if token else _NO_HASH)
    return token if same else None


def claimed_id(authorization: str) -> str:
    """Returns the id in a well-formed authorization; empty for any other, since the log must not show a secret."""
    found = re.fullmatch(r"(?i:bearer) +ww_([0-9a-f]{12})_[0-9a-f]{64} *", authorization)
    return found[1] if found else ""


def to_line(token: Token) -> str:
    """Returns the line of a token in the token file."""
    values = (VERSION, token.id, token.role.name.lower(), token.prefix, token.sha256)
    times = (_written(token.created), _written(token.expires))
    return json.dumps(dict(zip(_KEYS, (*values, *times), strict=True)))


def from_line(line: str) -> Token:
    """Returns the token of a line in the token file.

    Raises:
        ValueError: the line is malformed; the message does not repeat its contents.
    """
    values = _values(line)
    if values["version"] != VERSION:
        raise ValueError(f"has version {values['version']!r}; this program supports version {VERSION}")
    if set(values) != set(_KEYS):
        raise ValueError(f"must have exactly the keys {', '.join(_KEYS)}")
    role = values["role"]
    if not isinstance(role, str) or role not in {known.name.lower() for known in Role}:
        raise ValueError(f"has a role that is not one of {', '.join(known.name.lower() for known in Role)}")
    token = Token(
        id=_matching(values, "id", "[0-9a-f]{12}", "12 hexadecimal digits"),
        role=Role[role.upper()],
        prefix=_matching(values, "prefix", "(?s:.*)", "a string"),
        sha256=_matching(values, "sha256", "[0-9a-f]{64}", "64 hexadecimal digits"),
        created=_read(values, "created"),
        expires=None if values["expires"] is None else _read(values, "expires"),
    )
    if fault := prefix_fault(token.prefix, token.role):
        raise ValueError(f"has a prefix that {fault}")
    return token


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _values(line: str) -> dict[str, Any]:
    try:
        values = parse_json(line)
    except ValueError:
        raise ValueError("is not a JSON object") from None
    if not isinstance(values, dict) or "version" not in values:
        raise ValueError('is not a JSON object with a "version"')
    return values


def _matching(values: dict[str, Any], key: str, pattern: str, what: str) -> str:
    value = values[key]
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f'has a "{key}" that is not {what}')
    return value


def _written(time: datetime | None) -> str | None:
    return None if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(values: dict[str, Any], key: str) -> datetime:
    try:
        return datetime.strptime(values[key], _TIME).astimezone(timezone.utc)
    except (TypeError, ValueError):
        raise ValueError(f'has a "{key}" that is not a time such as "2026-01-31T12:00:00Z"') from None
