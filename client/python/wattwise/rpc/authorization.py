"""The token that calls carry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from wattwise.errors import CredentialsError
from wattwise.rpc.credentials import File

Metadata: TypeAlias = "tuple[tuple[str, str], ...]"


class Authorization:
    """The metadata that carries a token, kept up with its file.

    Args:
        token: the token; None reads it from the file.
        file: holds the token alone.

    Raises:
        CredentialsError: if there is no token, or it cannot be one.
    """

    def __init__(self, token: str | None, file: File | None) -> None:
        self._file = None if token or file is None else Path(file)
        self._seen: tuple[int, int, int] | None = None
        self._metadata: Metadata = _metadata(token, "the token") if token else ()
        if self._file is not None:
            self._seen = _look(self._file)
            self._metadata = self._read(self._file)

    def metadata(self) -> Metadata:
        """The metadata of a call; while the file is missing or spoilt, as it was before."""
        if self._file is not None and (seen := _look(self._file)) != self._seen:
            try:
                self._metadata = self._read(self._file)
            except CredentialsError:
                return self._metadata
            self._seen = seen
        return self._metadata

    @staticmethod
    def _read(file: Path) -> Metadata:
        try:
            text = file.read_text(encoding="ascii")
        except OSError as error:
            raise CredentialsError(f"cannot read the token file {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CredentialsError(
                f"{file} is no token file: it should hold what wattwise token create printed"
            ) from None
        return _metadata(text, f"what {file} holds")


def _metadata(token: str, what: str) -> Metadata:
    token = token.strip()
    # gRPC would show the whole of it in its own error.
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
        raise CredentialsError(
            f"{what} cannot be a token: it is empty, or has blanks or other signs in it; copy it again"
        )
    return (("authorization", f"Bearer {token}"),)


def _look(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
