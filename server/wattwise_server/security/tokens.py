"""Bearer tokens: what one may do, how it is recognised, and the line that is kept of it.

A token is `ww_<id>_<secret>`. The line is a JSON object:

    {"version": 1, "id": "5f0c2a9be1d4", "role": "trainer", "prefix": "team-a-", "sha256": "9c1b…",
     "created": "2026-01-31T12:00:00Z", "expires": null}

The id may be known to all and names the token in logs. `sha256` is the hash of the whole token in hexadecimal digits.
One pass of SHA-256 is enough: slow hashes protect what people think up; nobody tries 2²⁵⁶ secrets, at whatever speed.
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

from wattwise_server.domain import identifier_fault

VERSION = 1

_TIME = "%Y-%m-%dT%H:%M:%S%z"
_KEYS = ("version", "id", "role", "prefix", "sha256", "created", "expires")
_NOBODYS_HASH = "0" * 64


class Role(IntEnum):
    """What a token may call: each may do what the ones before it may."""

    TRAINER = 1
    """The calls of a training: register, ask, report, end."""

    OPERATOR = 2
    """The calls of JobAdmin too: look at jobs, and delete them."""

    ADMIN = 3
    """All calls; alone may go without a prefix, and so reach every job."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token: enough to recognise it, too little to use it.

    Attributes:
        id: Names it in the log and on the command line.
        role: What it may call.
        prefix: What the ids of the jobs that it reaches start with; empty is every job, and an admin's alone.
        sha256: Hash of the token, in hexadecimal digits.
        created: When it was made.
        expires: From when on it is refused; None is never.
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
    """What is wrong with a prefix for a role, if anything."""
    if not prefix and role is not Role.ADMIN:
        return f"is empty, and would let {role.name.lower()}s reach every job, which only an admin may; give one"
    return identifier_fault(prefix)


def new_token(role: Role, prefix: str, lifetime: timedelta | None) -> tuple[str, Token]:
    """Makes a token; returns it, which nobody can do a second time, with what is to be kept of it."""
    token_id = secrets.token_hex(6)
    text = f"ww_{token_id}_{secrets.token_hex(32)}"
    created = datetime.now(timezone.utc).replace(microsecond=0)
    return text, Token(token_id, role, prefix, _hash(text), created, created + lifetime if lifetime else None)


def recognised(tokens: Mapping[str, Token], given: str) -> Token | None:
    """Which of the tokens, by id, this text is; None if it is none of them."""
    token = tokens.get(given[3:15])
    # Compared in any case, and in constant time: how long a refusal takes tells neither which ids there are, nor how
    # much of a hash was right.
    same = hmac.compare_digest(_hash(given), token.sha256 if token else _NOBODYS_HASH)
    return token if same else None


def claimed_id(authorization: str) -> str:
    """The id that an authorization claims, if it has the form of a token; empty otherwise, lest a secret be shown."""
    found = re.fullmatch(r"(?i:bearer) +ww_([0-9a-f]{12})_[0-9a-f]{64} *", authorization)
    return found[1] if found else ""


def to_line(token: Token) -> str:
    """The line that is kept of a token."""
    values = (VERSION, token.id, token.role.name.lower(), token.prefix, token.sha256)
    times = (_written(token.created), _written(token.expires))
    return json.dumps(dict(zip(_KEYS, (*values, *times), strict=True)))


def from_line(line: str) -> Token:
    """The token of a line.

    Raises:
        ValueError: the line is none; the message tells what is wrong with it, and nothing of what it holds.
    """
    values = _values(line)
    if values["version"] != VERSION:
        raise ValueError(f"is of version {values['version']!r}, and this program knows version {VERSION} alone")
    if set(values) != set(_KEYS):
        raise ValueError(f"has other keys than {', '.join(_KEYS)}")
    role = values["role"]
    if role not in {known.name.lower() for known in Role}:
        raise ValueError(f"has a role that is none of {', '.join(known.name.lower() for known in Role)}")
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
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _values(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        raise ValueError("is no JSON object") from None
    if not isinstance(values, dict) or "version" not in values:
        raise ValueError('is no JSON object with a "version"')
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
        raise ValueError(f'has a "{key}" that is no time such as "2026-01-31T12:00:00Z"') from None
