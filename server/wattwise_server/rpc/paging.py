"""Page sizes and page tokens of the list calls."""

from __future__ import annotations

import base64
import binascii

from wattwise_server.errors import InvalidRequestError, Violation

USUAL_PAGE = 50
LARGEST_PAGE = 1000
PAGE_BYTES = 2 * 1024 * 1024
"""A page ends at this size; with the jobs that were read last it stays below the 4 MiB that clients accept."""
JOBS_AT_A_TIME = 8
"""Few: a job of an older server, with a thousand batch sizes, takes 250 kB on the wire."""


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


def page_token(kind: str, place: int) -> str:
    """The page token of the place where the next page of a kind of list begins."""
    return base64.urlsafe_b64encode(f"{kind}:{place}".encode()).decode()


def place(kind: str, page_token: str) -> int:
    """The place where a page begins; 0 for an empty page token.

    Raises:
        InvalidRequestError: the page token was not made by `page_token` for this kind of list.
    """
    if not page_token:
        return 0
    try:
        named, _, number = base64.b64decode(page_token, altchars=b"-_", validate=True).decode("ascii").partition(":")
        if named == kind and number.isdecimal() and int(number) < 2**63:
            return int(number)
    except (binascii.Error, ValueError):
        pass
    fault = "is not a page token of this list; pass next_page_token as received, or nothing for the first page"
    raise InvalidRequestError(Violation("page_token", fault))
