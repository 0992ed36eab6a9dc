"""Page sizes and page tokens of the list calls."""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import hmac
from typing import TypeAlias

from google.protobuf.message import Message
from wattwise import v1

from wattwise_server.domain import MAX_ID_LENGTH
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.observability.call import current_call
from wattwise_server.store.base import JobPlace, Place

ListRequest: TypeAlias = (
    v1.ListJobsRequest
    | v1.ListTrialsRequest
    | v1.ListEventsRequest
    | v1.ListMeasurementsRequest
    | v1.ListTrialBucketsRequest
    | v1.ListPowerProfilesRequest
)

USUAL_PAGE = 50
LARGEST_PAGE = 1000
USUAL_MEASUREMENTS, MOST_MEASUREMENTS = 1_000, 10_000
"""On a page."""
PAGE_BYTES = 2 * 1024 * 1024
"""The size of a page or of a message of a watch. With one more item it stays below the 4 MiB that clients accept."""
_CODE_BYTES, _NUMBER_BYTES = 16, 8
_MOST_BYTES = 4 * MAX_ID_LENGTH
"""The size of a place that holds the longest id."""

_ITEM_BYTES = 5
"""The tag and the length of an item that is smaller than a page."""

JOBS_AT_A_TIME = 100
"""So many that other calls need not wait long."""
TRIALS_AT_A_TIME = 100
"""Trials whose ids, labels and monitors have the longest names take a few MB."""
EVENTS_AT_A_TIME = 100
"""An event with the longest ids takes a few kB."""
MEASUREMENTS_AT_A_TIME = 1_000


class PageSpace:
    """The space in one page, or in one message of a watch."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def takes(self, item: Message) -> bool:
        """Whether another item fits; the first one always does. If so, it counts from now on."""
        num_bytes = self._num_bytes + item.ByteSize() + _ITEM_BYTES
        if self._num_bytes and num_bytes > PAGE_BYTES:
            return False
        self._num_bytes = num_bytes
        return True


def page_size(requested: int, usual: int = USUAL_PAGE, largest: int = LARGEST_PAGE) -> int:
    """How many items to return: 0 means `usual`, and more than `largest` means `largest`.

    Raises:
        InvalidRequestError: the size is negative.
    """
    if requested < 0:
        raise InvalidRequestError(Violation("page_size", f"is {requested}; use 1 to {largest}, or 0 for {usual}"))
    return min(requested or usual, largest)


class PageTokens:
    """Makes page tokens, which say nothing to anyone else and are good for one caller and one list.

    A token is a code of the caller, the request and the place, followed by the place, encrypted with that code as its
    nonce: a synthetic initialization vector, as in RFC 5297, from HMAC. A place is numbers, or the id of a job.

    Args:
        key: Of the database, so that tokens outlive the server.
    """

    def __init__(self, key: bytes) -> None:
        self._code_key, self._place_key = (hmac.digest(key, purpose, "sha256") for purpose in (b"code", b"place"))

    def token(self, request: ListRequest, place: Place) -> str:
        """The token of the place behind which the next page of a list begins."""
        # A time is negative before 1970.
        return self._token(request, b"".join(number.to_bytes(_NUMBER_BYTES, "big", signed=True) for number in place))

    def job_token(self, request: v1.ListJobsRequest, place: JobPlace) -> str:
        """Like `token`, for a list of jobs."""
        return self._token(request, place.encode()) if isinstance(place, str) else self.token(request, (place,))

    def _token(self, request: ListRequest, place: bytes) -> str:
        code = self._code(request, place)
        return base64.urlsafe_b64encode(code + self._encrypted(code, place)).decode()

    def place(self, request: ListRequest) -> Place:
        """The place behind which the page of a request begins; empty for the first one.

        Raises:
            InvalidRequestError: its page token is not one of this list and this caller.
        """
        place = self._place(request)
        starts = range(0, len(place), _NUMBER_BYTES)
        return tuple(int.from_bytes(place[start : start + _NUMBER_BYTES], "big", signed=True) for start in starts)

    def job_place(self, request: v1.ListJobsRequest) -> JobPlace:
        """Like `place`, for a list of jobs; 0 for the first page."""
        if request.order == v1.JOB_ORDER_ID:
            return self._place(request).decode()
        return next(iter(self.place(request)), 0)

    def _place(self, request: ListRequest) -> bytes:
        if not request.page_token:
            return b""
        try:
            data = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        code = data[:_CODE_BYTES]
        place = self._encrypted(code, data[_CODE_BYTES:]) if len(data) <= _CODE_BYTES + _MOST_BYTES else b""
        # What has the code is as it was made.
        if place and hmac.compare_digest(code, self._code(request, place)):
            return place
        fault = (
            "is not a page token of this list; pass next_page_token as received, with the same token and the other "
            "fields unchanged, or nothing for the first page"
        )
        raise InvalidRequestError(Violation("page_token", fault))

    def _code(self, request: ListRequest, place: bytes) -> bytes:
        listed = copy.deepcopy(request)
        # Pages of one list may have different sizes.
        listed.ClearField("page_token")
        listed.ClearField("page_size")
        call = current_call.get()
        caller = call.token_id.encode() if call is not None else b""
        parts = (type(request).__name__.encode(), caller, listed.SerializeToString(deterministic=True), place)
        content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._code_key, content, "sha256")[:_CODE_BYTES]

    def _encrypted(self, code: bytes, place: bytes) -> bytes:
        """Encrypts a place, or decrypts it again."""
        blocks = -(-len(place) // hashlib.sha256().digest_size)
        stream = b"".join(hmac.digest(self._place_key, code + bytes(block), "sha256") for block in range(blocks))
        return bytes(one ^ other for one, other in zip(place, stream, strict=False))
