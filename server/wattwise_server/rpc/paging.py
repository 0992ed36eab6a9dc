"""Page sizes and page tokens of the list calls."""

from __future__ import annotations

import asyncio
import base64
import copy
import hmac
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from google.protobuf.message import Message
from wattwise import v1
from wattwise.rules import MAX_PAGE

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
USUAL_MEASUREMENTS = 1_000
"""Items of a page if the request names no number."""
PAGE_BYTES = 2 * 1024 * 1024
"""The size of a page or of a message of a watch. With one more item it stays below the 4 MiB that clients accept."""
_ITEM_BYTES = 5
"""The tag and the length of an item that is smaller than a page."""

TRIALS_AT_A_TIME = 100
"""Trials whose ids, labels and monitors have the longest names take a few MB."""
EVENTS_AT_A_TIME = 100
"""An event with the longest ids takes a few kB."""
MEASUREMENTS_AT_A_TIME = 1_000
_SHOWN_AT_A_STRETCH = 100
"""The number of items after which other calls get their turn."""

Item = TypeVar("Item")
Behind = TypeVar("Behind")
M = TypeVar("M", bound=Message)
Page = TypeVar(
    "Page",
    v1.ListJobsResponse,
    v1.ListTrialsResponse,
    v1.ListEventsResponse,
    v1.ListMeasurementsResponse,
    v1.ListTrialBucketsResponse,
    v1.ListPowerProfilesResponse,
)


class PageSpace:
    """The space in one page, or in one message of a watch."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def takes(self, item: Message) -> bool:
        """Returns whether another item fits, and counts it if so; the first one always fits."""
        num_bytes = self._num_bytes + item.ByteSize() + _ITEM_BYTES
        if self._num_bytes and num_bytes > PAGE_BYTES:
            return False
        self._num_bytes = num_bytes
        return True


async def fill(
    page: Page,
    add: Callable[[M], object],
    size: int,
    after: Behind,
    *,
    read: Callable[[Behind, int], Awaitable[Sequence[Item]]],
    place_of: Callable[[Item], Behind],
    show: Callable[[Item], M | None],
    token_of: Callable[[Behind], str],
    at_a_time: int = MAX_PAGE,
) -> Page:
    """Fills a page of a list, sets its token unless it is the last page, and returns it.

    Args:
        page: The page.
        add: Adds a message to the page.
        size: The largest number of items on the page.
        after: The place behind which the page begins.
        read: Reads at most so many items behind a place.
        place_of: Returns the place of an item.
        show: Returns the message of an item; None leaves the item out.
        token_of: Returns the token of a place.
        at_a_time: How many items are read at a time.
    """
    space, count = PageSpace(), 0
    while count < size:
        wanted = min(size - count, at_a_time)
        found = await read(after, wanted + 1)
        for item in found[:wanted]:
            message = show(item)
            if message is not None:
                if not space.takes(message):
                    page.next_page_token = token_of(after)
                    return page
                add(message)
                count += 1
                if count % _SHOWN_AT_A_STRETCH == 0:
                    await asyncio.sleep(0)
            after = place_of(item)
        if len(found) <= wanted:
            return page
    page.next_page_token = token_of(after)
    return page


def page_size(requested: int, usual: int = USUAL_PAGE, largest: int = MAX_PAGE) -> int:
    """Returns the number of items of a page: 0 means `usual`, and more than `largest` means `largest`.

    Raises:
        InvalidRequestError: the size is negative.
    """
    if requested < 0:
        raise InvalidRequestError(Violation("page_size", f"is {requested}; use 1 to {largest}, or 0 for {usual}"))
    return min(requested or usual, largest)


class PageTokens:
    """Makes page tokens, which say nothing to anyone else and are good for one caller and one list.

    A token is a place, encrypted and authenticated together with the caller and the request by AES-SIV (RFC 5297),
    which needs no nonce: equal places have equal tokens. A place is numbers, or the id of a job.

    Args:
        key: Of the database, so that tokens outlive the server.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESSIV(hmac.digest(key, b"page tokens", "sha512"))

    def token(self, request: ListRequest, place: Place) -> str:
        """Returns the token of the place behind which the next page of a list begins."""
        # A time is negative before 1970.
        return self._token(request, struct.pack(f">{len(place)}q", *place))

    def job_token(self, request: v1.ListJobsRequest, place: JobPlace) -> str:
        """Returns the token of a place in a list of jobs; see `token`."""
        return self._token(request, place.encode()) if isinstance(place, str) else self.token(request, (place,))

    def _token(self, request: ListRequest, place: bytes) -> str:
        return base64.urlsafe_b64encode(self._cipher.encrypt(place, _bound_to(request))).decode()

    def place(self, request: ListRequest) -> Place:
        """Returns the place behind which the page of a request begins; empty for the first one.

        Raises:
            InvalidRequestError: its page token is not one of this list and this caller.
        """
        place = self._place(request)
        return struct.unpack(f">{len(place) // struct.calcsize('>q')}q", place)

    def job_place(self, request: v1.ListJobsRequest) -> JobPlace:
        """Returns the place in a list of jobs; 0 for the first page; see `place`."""
        if request.order == v1.JOB_ORDER_ID:
            return self._place(request).decode()
        return next(iter(self.place(request)), 0)

    def _place(self, request: ListRequest) -> bytes:
        if not request.page_token:
            return b""
        try:
            token = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
            return self._cipher.decrypt(token, _bound_to(request))
        except (ValueError, InvalidTag):
            fault = (
                "is not a page token of this list; pass next_page_token as received, with the same token and the "
                "other fields unchanged, or nothing for the first page"
            )
            raise InvalidRequestError(Violation("page_token", fault)) from None


def _bound_to(request: ListRequest) -> list[bytes]:
    """Returns what a token is good for: the method, the caller and the fields that say what is listed."""
    listed = copy.deepcopy(request)
    # Pages of one list may have different sizes.
    listed.ClearField("page_token")
    listed.ClearField("page_size")
    call = current_call.get()
    caller = call.token_id if call is not None else ""
    return [type(request).__name__.encode(), caller.encode(), listed.SerializeToString(deterministic=True)]
