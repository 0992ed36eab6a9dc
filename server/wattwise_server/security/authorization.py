"""Checks the token of every call. Without a token file it is not used at all."""

from __future__ import annotations

from typing import Any

from wattwise_server.errors import PermissionDeniedError, ServiceError
from wattwise_server.observability.call import Call, subject
from wattwise_server.security.access import ACCESS, check_reach, check_role
from wattwise_server.security.token_book import TokenBook
from wattwise_server.security.tokens import Token, claimed_id

_KEY = "authorization"


class Authorization:
    """Admits calls by their tokens.

    Args:
        tokens: The known tokens.
    """

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    def admit(self, call: Call) -> Caller | None:
        """Returns the caller, if its token may call the method; None if the method needs no token.

        Raises:
            UnauthenticatedError: the call has no valid token.
            PermissionDeniedError: the token's role may not call the method.
        """
        access = ACCESS.get(call.method)
        if access is not None and access.roles is None:
            return None
        authorization = call.metadata(_KEY)
        try:
            token = self._tokens.verify(authorization)
        except ServiceError:
            _note_refusal(call, None, claimed_id(authorization))
            raise
        try:
            check_role(token, call.method)
        except PermissionDeniedError:
            _note_refusal(call, None, token.id)
            raise
        call.token_id, call.reach, call.role = token.id, token.prefix, token.role.name
        return Caller(call, token, self._tokens)


class Caller:
    """The token of one call, checked again during the call."""

    __slots__ = ("_call", "_token", "_tokens")

    def __init__(self, call: Call, token: Token, tokens: TokenBook) -> None:
        self._call = call
        self._token = token
        self._tokens = tokens

    def check(self, message: Any) -> None:
        """Checks that the token may name the job of a message.

        Raises:
            PermissionDeniedError: the job is outside the token's prefix.
        """
        try:
            check_reach(self._token, self._call.method, message)
        except PermissionDeniedError:
            _note_refusal(self._call, message, self._token.id)
            raise

    def check_token(self) -> None:
        """Checks that the token is still valid.

        Raises:
            UnauthenticatedError: the token has expired or was revoked during the call.
        """
        try:
            self._tokens.check(self._token)
        except ServiceError:
            _note_refusal(self._call, None, self._token.id)
            raise


def _note_refusal(call: Call, message: Any, token_id: str) -> None:
    """Notes the token's id and the job for the log line. The token itself may be valid and is never logged."""
    call.token_id = token_id or "(none)"
    if call.named is None and message is not None:
        call.named = subject(message)
