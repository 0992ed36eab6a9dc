"""The static files of the page, which are kept in memory: a request opens no file."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from mimetypes import guess_type
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

_PART = 64 * 1024
_SMALLEST_COMPRESSED = 500


class _File:
    """A file, uncompressed and compressed."""

    def __init__(self, path: Path) -> None:
        self.plain = path.read_bytes()
        self.compressed = gzip.compress(self.plain) if len(self.plain) >= _SMALLEST_COMPRESSED else None
        self.media_type = guess_type(path.name)[0] or "application/octet-stream"
        self.headers = {
            # Browsers ask again each time: a newer page must not meet an older script.
            "cache-control": "no-cache",
            # A weak one, since it is that of both contents.
            "etag": f'W/"{hashlib.sha256(self.plain).hexdigest()[:32]}"',
            "vary": "Accept-Encoding",
        }


class StaticFiles:
    """The files of a folder, read once.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path.relative_to(folder).as_posix(): _File(path) for path in folder.rglob("*") if path.is_file()}

    async def answer(self, request: Request) -> Response:
        """Answers with the file that the route's `name` says, or with 304 if the browser has it.

        Raises:
            HTTPException: there is no such file.
        """
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        if _has(request, file.headers["etag"]):
            return Response(None, 304, headers=file.headers)
        content, headers = file.plain, dict(file.headers)
        if file.compressed is not None and _takes_gzip(request):
            content = file.compressed
            headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(content))
        if request.method == "HEAD":
            return Response(None, headers=headers, media_type=file.media_type)
        # In parts, so that no copy of the whole file waits for a browser that reads slowly.
        return StreamingResponse(_parts(content), headers=headers, media_type=file.media_type)


def _has(request: Request, etag: str) -> bool:
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return etag.removeprefix("W/") in known or known == ["*"]


def _takes_gzip(request: Request) -> bool:
    for each in request.headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return False


async def _parts(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), _PART):
        yield content[begin : begin + _PART]
