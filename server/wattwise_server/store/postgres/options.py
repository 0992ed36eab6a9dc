"""The options of a database's URL and the files that are read for it, checked before the first connection.

PostgreSQL does not say why it gets no password, and asyncpg takes an option that it does not know for a setting of the
session, which PostgreSQL looks at only after the password.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from wattwise.files import USUAL, FileError, read_bytes, read_text

from wattwise_server.errors import StartError


class _Places(NamedTuple):
    """Where the name of a file comes from, besides the option of the URL.

    Attributes:
        variable: the environment variable.
        default: the file in the user's home that is read without either.
    """

    variable: str
    default: str


_TLS_FILES = {
    "sslcert": _Places("PGSSLCERT", ".postgresql/postgresql.crt"),
    "sslkey": _Places("PGSSLKEY", ".postgresql/postgresql.key"),
    "sslrootcert": _Places("PGSSLROOTCERT", ".postgresql/root.crt"),
    "sslcrl": _Places("PGSSLCRL", ".postgresql/root.crl"),
}
_FILES = {
    "passfile": _Places("PGPASSFILE", ".pgpass"),
    "servicefile": _Places("PGSERVICEFILE", ".pg_service.conf"),
    **_TLS_FILES,
}
_OF_AUTHORITY = ("sslrootcert", "sslcrl")
"""Files that are read only if the server's certificate is wanted."""
WITHOUT_CERTIFICATE = ("allow", "prefer")
"""Modes of TLS in which a server needs neither TLS nor a certificate that is checked."""
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


class _File(NamedTuple):
    """A file that is read for a connection.

    Attributes:
        path: the file.
        shown: the file in a message, with what names it.
        is_named: whether something names it, so that it has to exist.
    """

    path: Path
    shown: str
    is_named: bool


def check_options(options: Mapping[str, str], shown: str, *, in_url: bool) -> Mapping[str, str]:
    """Checks the options of a URL, and the files that are read for them.

    Args:
        options: by name.
        shown: the URL without its password.
        in_url: whether the URL has a password before its host.

    Returns:
        The options, and those of the service that the URL names.

    Raises:
        StartError: an option is not supported, or a file that is needed cannot be used.
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
    of_service = _service(options, shown)
    both = {**of_service, **{name: value for name, value in options.items() if value}}
    names = _tls_files(options, both)
    if options.get("passfile") and not (in_url or both.get("password") or os.environ.get("PGPASSWORD")):
        names.append("passfile")
    for name in names:
        file = _file(name, both)
        if file is not None and (fault := _fault(file, private=name == "passfile")):
            raise StartError(f"{shown} cannot be used: {file.shown} {fault}")
    return both


def tls_mode(options: Mapping[str, str]) -> str:
    """Returns the sslmode of a connection.

    Args:
        options: as `check_options` returns them.
    """
    return options.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"


def _tls_files(options: Mapping[str, str], both: Mapping[str, str]) -> list[str]:
    """Returns the options whose files are checked: those that are read, and those of the URL. None without TLS."""
    mode = tls_mode(both)
    if mode == "disable":
        return []
    certificate = _file("sslcert", both)
    unread = set(_OF_AUTHORITY if mode in WITHOUT_CERTIFICATE else ())
    if certificate is None or not (certificate.is_named or os.path.lexists(certificate.path)):
        unread.add("sslkey")
    return [name for name in _TLS_FILES if options.get(name) or name not in unread]


def _service(options: Mapping[str, str], shown: str) -> dict[str, str]:
    """Returns the options of the service that a URL names; none without a service.

    Raises:
        StartError: the file of services cannot be used, or has no such service.
    """
    service = options.get("service")
    if not service:
        return {}
    file = _file("servicefile", {})
    if file is None:
        raise StartError(f"{shown} names a service, and there is no home with a file of services: set PGSERVICEFILE")
    if not (fault := _fault(file._replace(is_named=True), private=False)):
        # As asyncpg reads it.
        parser = configparser.ConfigParser()
        try:
            parser.read_string(read_bytes(file.path).decode())
            if service in parser.sections():
                return dict(parser[service])
            fault = f"has no service {service}: add [{service}] to it, or correct the service of the URL"
        except UnicodeDecodeError:
            fault = "is not UTF-8 text: save it as UTF-8"
        except configparser.InterpolationError:
            fault = "has a % in a value: write it as %%"
        except (configparser.Error, FileError, OSError):
            # Their messages may have a password.
            fault = "is malformed: it has to have [SERVICE] and below it lines NAME=VALUE, no name twice"
    raise StartError(f"{shown} cannot be used: {file.shown} {fault}")


def named_schema(options: Mapping[str, str], shown: str) -> str:
    """Returns the schema that the search_path of a URL names; empty if there is none.

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
    """Returns whether there is a password file that is ignored, with a warning of asyncpg's at every connection.

    Args:
        options: as `check_options` returns them.
    """
    file = _file("passfile", options)
    return file is not None and bool(_fault(file._replace(is_named=False), private=True))


def password_source(options: Mapping[str, str], *, in_url: bool) -> str:
    """Returns where the password of a connection came from, for users that correct it.

    Args:
        options: those of the URL.
        in_url: whether the URL has a password before its host.
    """
    if in_url or options.get("password"):
        return "it is in the URL"
    if service := options.get("service"):
        return f"it is read from the service {service}, PGPASSWORD or a password file"
    if os.environ.get("PGPASSWORD"):
        return "it is in PGPASSWORD"
    file = _file("passfile", options)
    where = "none was sent: it is read from the URL, PGPASSWORD, or the file of passfile or ~/.pgpass"
    if file is None:
        return where
    fault = _fault(file._replace(is_named=True), private=True)
    if fault:
        return f"{where}; {file.path} {fault}"
    return (
        f"it is in the first line of {file.path} for this host, port, database and user; without such a line none is "
        "sent"
    )


def _file(name: str, options: Mapping[str, str]) -> _File | None:
    """Returns the file of an option, a variable or a home; None if there is no home."""
    if named := options.get(name):
        return _File(Path(named), f"its {name}, {named},", is_named=True)
    variable, default = _FILES[name]
    named = os.environ.get(variable)
    # An empty variable is unset for TLS alone.
    if named or (named is not None and name not in _TLS_FILES):
        return _File(Path(named), f"the file of {variable}, {named},", is_named=True)
    try:
        path = Path.home() / default
    except (RuntimeError, KeyError):
        return None
    return _File(path, f"{path}", is_named=False)


def _fault(file: _File, *, private: bool) -> str:
    """Returns why a file cannot be used; empty if it can."""
    path = file.path
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist" if file.is_named else ""
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    if fault := _unreadable(path, found):
        return fault
    if private and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"is ignored, since other users may read it: chmod 600 {path}"
    if private:
        try:
            read_text(path)
        except (FileError, OSError) as error:
            return f"is ignored: {error}"
    return ""


def _unreadable(path: Path, found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a plain file"
    if not os.access(path, os.R_OK):
        return "cannot be read: permission denied; it has to belong to the user of this process"
    return f"is larger than {USUAL:,} bytes: name another file" if found.st_size > USUAL else ""
