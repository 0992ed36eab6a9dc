"""The options of a database's URL and the files that they name, checked before the first connection.

PostgreSQL does not say why it gets no password, and asyncpg takes an option that it does not know for a setting of the
session, which PostgreSQL looks at only after the password.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from wattwise_server.errors import StartError

_TLS_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
# Not `application_name`: servers find their own connections by it.
_SUPPORTED = (
    *("host", "port", "dbname", "database", "user", "password", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslnegotiation", "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    *("krbsrvname", "gsslib", "options"),
    *_TLS_FILES,
)
_LIKENESS = 0.8
_SEARCH_PATH = re.compile(r"(?:^|\s)(?:-c\s*|--)search[_-]path\s*=((?:\\.|\S)*)", re.IGNORECASE)
_SCHEMA = re.compile(r'[a-z_][a-z0-9_$]*|"[^"\\\']+"', re.ASCII | re.IGNORECASE)


def check_options(options: Mapping[str, str], shown: str, *, in_url: bool) -> None:
    """Checks the options of a URL.

    Args:
        options: by name.
        shown: the URL without its password.
        in_url: whether the URL has a password before its host.

    Raises:
        StartError: an option is not supported, or names a file that is needed and cannot be used.
    """
    for place, name in enumerate(options, 1):
        if name not in _SUPPORTED:
            close = get_close_matches(name, _SUPPORTED, n=1, cutoff=_LIKENESS)
            advice = f" Did you mean {close[0]}?" if close else ""
            # It is not named: it may be a part of a password.
            raise StartError(
                f"option {place} of {shown} is not supported.{advice} Supported are {', '.join(sorted(_SUPPORTED))}; "
                "settings of PostgreSQL go into options=-c%20NAME%3DVALUE; in a password write ? as %3F, & as %26"
            )
    files = [] if options.get("sslmode") == "disable" else [name for name in _TLS_FILES if options.get(name)]
    if options.get("passfile") and not (in_url or options.get("password") or os.environ.get("PGPASSWORD")):
        files.append("passfile")
    for name in files:
        fault = _fault(Path(options[name]), private=name == "passfile")
        if fault:
            raise StartError(f"{shown} cannot be used: its {name}, {options[name]}, {fault}")


def named_schema(options: Mapping[str, str], shown: str) -> str:
    """The schema that the search_path of a URL names; empty if there is none.

    Args:
        options: those of the URL.
        shown: the URL without its password.

    Raises:
        StartError: it names several, or one that depends on the user.
    """
    found = _SEARCH_PATH.findall(options.get("options", ""))
    if not found:
        return ""
    named = re.sub(r"\\(.)", r"\1", found[-1]).strip()
    # PostgreSQL takes "$user" for the name of the user.
    if not _SCHEMA.fullmatch(named) or named == '"$user"':
        raise StartError(
            f"the search_path in the options of {shown} has to be one schema: every server has to find the same tables"
        )
    return named.strip('"') if named.startswith('"') else named.lower()


def ignored_passfile(options: Mapping[str, str]) -> bool:
    """Whether there is a password file that is ignored, with a warning of asyncpg's at every connection."""
    file = _password_file(options)
    in_service = options.get("service") or os.environ.get("PGSERVICE")
    return not in_service and file is not None and file.exists() and bool(_fault(file, private=True))


def password_source(options: Mapping[str, str], *, in_url: bool) -> str:
    """Where the password of a connection came from, for users that correct it.

    Args:
        options: those of the URL.
        in_url: whether the URL has a password before its host.
    """
    if in_url or options.get("password"):
        return "it is in the URL"
    if service := options.get("service") or os.environ.get("PGSERVICE"):
        return f"it is read from the service {service}, PGPASSWORD or a password file"
    if os.environ.get("PGPASSWORD"):
        return "it is in PGPASSWORD"
    file = _password_file(options)
    where = "none was sent: it is read from the URL, PGPASSWORD, or the file of passfile or ~/.pgpass"
    if file is None:
        return where
    fault = _fault(file, private=True)
    if fault:
        return f"{where}; {file} {fault}"
    return f"it is in the first line of {file} for this host, port, database and user; without such a line none is sent"


def _password_file(options: Mapping[str, str]) -> Path | None:
    named = options.get("passfile") or os.environ.get("PGPASSFILE")
    try:
        return Path(named) if named is not None else Path.home() / ".pgpass"
    except (RuntimeError, KeyError):
        # There is no home.
        return None


def _fault(file: Path, *, private: bool) -> str:
    """Why a file cannot be used; empty if it can."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    if not stat.S_ISREG(mode):
        return "is not a plain file"
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"is ignored, since other users may read it: chmod 600 {file}"
    if not os.access(file, os.R_OK):
        return "cannot be read: permission denied; it has to belong to the user of this process"
    return ""
