"""Page sizes and page tokens of the list calls."""

from __future__ import annotations

import base64
import binascii
import copy
import hmac
from typing import TypeAlias

from wattwise import v1

from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.observability.call import current_call
from wattwise_server.store.base import Place

ListRequest: TypeAlias = v1.ListJobsRequest | v1.ListTrialsRequest | v1.ListEventsRequest

USUAL_PAGE = 50
LARGEST_PAGE = 1000
PAGE_BYTES = 2 * 1024 * 1024
"""A page ends at this size; with the jobs that were read last it stays below the 4 MiB that clients accept."""
_CODE_BYTES, _NUMBER_BYTES = 16, 8
_MOST_NUMBERS = 3
"""In a place: a time, a job's key and a trial's number."""

_PLACE_SIZES = range(_NUMBER_BYTES, _MOST_NUMBERS * _NUMBER_BYTES + 1, _NUMBER_BYTES)
JOBS_AT_A_TIME = 100
"""So many that other calls need not wait long: a job of an older server may have a thousand batch sizes."""
TRIALS_AT_A_TIME = 100
"""A trial whose ids and monitors have the longest names takes 10 kB."""


def page_size(requested: int) -> int:
    """How many items to return: 0 means 50, more than 1000 means 1000.

    Raises:
        InvalidRequestError: the size is negative.
    """
    if requested < 0:
        raise InvalidRequestError(
            Violation("page_size", f"is {requested}; use 1 to {LARGEST_PAGE}, or 0 for {USUAL_PAGE}")
        )
    return min(requested or USUAL_PAGE, LARGEST_PAGE)


class PageTokens:
    """Makes page tokens, which say nothing to anyone else and are good for one caller and one list.

    A token is a code of the caller, the request and the place, followed by the place, encrypted with that code as its
    nonce: a synthetic initialization vector, as in RFC 5297, from HMAC.

    Args:
        key: Of the database, so that tokens outlive the server.
    """

    def __init__(self, key: bytes) -> None:
        self._code_key, self._place_key = (hmac.digest(key, purpose, "sha256") for purpose in (b"code", b"place"))

    def token(self, request: ListRequest, place: Place) -> str:
        """The token of the place behind which the next page of a list begins."""
        # A time is negative before 1970.
        numbers = b"".join(number.to_bytes(_NUMBER_BYTES, "big", signed=True) for number in place)
        code = self._code(request, numbers)
        return base64.urlsafe_b64encode(code + self._encrypted(code, numbers)).decode()

    def place(self, request: ListRequest) -> Place:
        """The place behind which the page of a request begins; empty for the first one.

        Raises:
            InvalidRequestError: its page token is not one of this list and this caller.
        """
        if not request.page_token:
            return ()
        try:
            data = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        code, numbers = data[:_CODE_BYTES], self._encrypted(data[:_CODE_BYTES], data[_CODE_BYTES:])
        fits = len(data) == _CODE_BYTES + len(numbers) and len(numbers) in _PLACE_SIZES
        if fits and hmac.compare_digest(code, self._code(request, numbers)):
            starts = range(0, len(numbers), _NUMBER_BYTES)
            return tuple(int.from_bytes(numbers[start : start + _NUMBER_BYTES], "big", signed=True) for start in starts)
        fault = (
            "is not a page token of this list; pass next_page_token as received, with the same token and the other "
            "fields unchanged, or nothing for the first page"
        )
        raise InvalidRequestError(Violation("page_token", fault))

    def _code(self, request: ListRequest, numbers: bytes) -> bytes:
        listed = copy.deepcopy(request)
        # Pages of one list may have different sizes.
        listed.ClearField("page_token")
        listed.ClearField("page_size")
        call = current_call.get()
        caller = call.token_id.encode() if call is not None else b""
        parts = (type(request).__name__.encode(), caller, listed.SerializeToString(deterministic=True), numbers)
        content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._code_key, content, "sha256")[:_CODE_BYTES]

    def _encrypted(self, code: bytes, numbers: bytes) -> bytes:
        """Encrypts a place, or decrypts it again; a place has no more bytes than the digest."""
        stream = hmac.digest(self._place_key, code, "sha256")
        return bytes(one ^ other for one, other in zip(numbers, stream, strict=False))
