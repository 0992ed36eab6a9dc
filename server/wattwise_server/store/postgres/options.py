"""The options of a database's URL and the files that they name, checked before the first connection.

PostgreSQL does not say why it gets no password, and asyncpg takes an option that it does not know for a setting of the
session, which PostgreSQL looks at only after the password.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from wattwise_server.errors import StartError

_FILES = ("passfile", "sslcert", "sslkey", "sslrootcert", "sslcrl")
_KNOWN = (
    *("host", "port", "dbname", "database", "user", "password", "target_session_attrs", "service"),
    *("sslmode", "sslnegotiation", "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    *("krbsrvname", "gsslib", "application_name", "options"),
    *_FILES,
)

# asyncpg warns of a password file that it ignores, at every connection; `password_source` says it when it matters.
warnings.filterwarnings("ignore", "password file .*", UserWarning)


def unknown_option(options: Mapping[str, str]) -> str:
    """The first option that PostgreSQL's clients do not have; empty if there is none."""
    return next((name for name in options if name not in _KNOWN), "")


def check_options(options: Mapping[str, str], shown: str) -> None:
    """Checks the options of a URL.

    Args:
        options: by name.
        shown: the URL without its password.

    Raises:
        StartError: an option is unknown, or names a file that cannot be used.
    """
    name = unknown_option(options)
    if name:
        close = get_close_matches(name, _KNOWN, n=1)
        advice = f"Did you mean {close[0]}?" if close else f"Supported are {', '.join(sorted(_KNOWN))}."
        raise StartError(
            f"{shown} has the option {name}, which is misspelt or not supported. {advice} A setting of PostgreSQL is "
            "written as options=-c%20NAME%3DVALUE"
        )
    named = {f"the file of {name}": options[name] for name in _FILES if options.get(name)}
    if "PGPASSFILE" in os.environ and "passfile" not in options:
        named["the file of PGPASSFILE"] = os.environ["PGPASSFILE"]
    for what, file in named.items():
        fault = _fault(Path(file), private="pass" in what.lower())
        if fault:
            raise StartError(f"{shown} cannot be used: {what}, {file}, {fault}")


def password_source(options: Mapping[str, str], *, in_url: bool) -> str:
    """Where the password of a connection came from, for whoever has to correct it.

    Args:
        options: those of the URL.
        in_url: whether the URL has a password before its host.
    """
    if in_url or "password" in options:
        return "it is in the URL"
    if "PGPASSWORD" in os.environ:
        return "it is in PGPASSWORD"
    file = Path(options.get("passfile") or os.environ.get("PGPASSFILE") or Path.home() / ".pgpass")
    fault = _fault(file, private=True)
    if fault:
        return f"none was sent: it is read from the URL, PGPASSWORD, the file of passfile or ~/.pgpass; {file} {fault}"
    return f"it is in the first line of {file} for this host, port, database and user; without such a line none is sent"


def _fault(file: Path, *, private: bool) -> str:
    """Why a file cannot be used; empty if it can."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(mode):
        return "is not a plain file"
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"is ignored, since other users may read it: chmod 600 {file}"
    if not os.access(file, os.R_OK):
        return "cannot be read: permission denied; it has to belong to the user of this process"
    return ""
