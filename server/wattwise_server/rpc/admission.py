"""Lets calls in that bring a token which may make them. Without a token file it is not there at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any

from wattwise_server.errors import PermissionDeniedError, ServiceError
from wattwise_server.observability.call import Call, Context, current_call, subject
from wattwise_server.rpc.handlers import Handler, behavior, remade
from wattwise_server.security.access import ACCESS, check_reach, check_role
from wattwise_server.security.token_book import TokenBook
from wattwise_server.security.tokens import Token, claimed_id

_KEY = "authorization"


class Admission:
    """Stands behind what turns errors into statuses: what it refuses, it raises.

    Args:
        tokens: Who is known.
    """

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Holds every call of a method against its caller's token, unless everybody may call it."""
        access = ACCESS.get(method)
        if access is not None and access.role is None:
            return handler
        serve = behavior(handler)

        async def answer(request: Any, context: Context) -> Any:
            visitor = self._admitted(method, context, request)
            visitor.check(request)
            return await serve(request, context)

        async def write(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            visitor = self._admitted(method, context, request)
            visitor.check(request)
            async with aclosing(serve(request, context)) as responses:
                async for response in responses:
                    visitor.check_still()
                    yield response

        async def converse(requests: Any, context: Context) -> None:
            await serve(_Checked(requests, self._admitted(method, context)), context)

        async def exchange(requests: Any, context: Context) -> AsyncGenerator[Any, None]:
            async with aclosing(serve(_Checked(requests, self._admitted(method, context)), context)) as responses:
                async for response in responses:
                    yield response

        if handler.request_streaming:
            return remade(handler, exchange if isasyncgenfunction(serve) else converse)
        return remade(handler, write if handler.response_streaming else answer)

    def _admitted(self, method: str, context: Context, request: Any = None) -> _Visitor:
        """Whoever calls, if the call may be made at all; of a stream's request nothing is known yet.

        Raises:
            UnauthenticatedError: there is no token with the call that is known and good.
            PermissionDeniedError: its role may not call the method.
        """
        call = current_call.get()
        if call is None:
            # Reflection is not ours, but its callers are refused, and told of, all the same.
            call = Call(method, context, request)
            current_call.set(call)
        given = call.metadata(_KEY)
        try:
            token = self._tokens.recognise(given)
        except ServiceError:
            _blame(call, request, claimed_id(given))
            raise
        try:
            check_role(token, method)
        except PermissionDeniedError:
            _blame(call, request, token.id)
            raise
        return _Visitor(call, token, self._tokens)


class _Visitor:
    """A token in a call."""

    __slots__ = ("_call", "_token", "_tokens")

    def __init__(self, call: Call, token: Token, tokens: TokenBook) -> None:
        self._call = call
        self._token = token
        self._tokens = tokens

    def check(self, message: Any) -> None:
        """Lets a message pass.

        Raises:
            PermissionDeniedError: it is about a job that the token does not reach.
        """
        try:
            check_reach(self._token, self._call.method, message)
        except PermissionDeniedError:
            _blame(self._call, message, self._token.id)
            raise

    def check_still(self) -> None:
        """Lets a long call go on.

        Raises:
            UnauthenticatedError: the token has expired or was revoked since it began.
        """
        try:
            self._tokens.check(self._token)
        except ServiceError:
            _blame(self._call, None, self._token.id)
            raise


class _Checked:
    """The messages of a stream, each of which its token must reach."""

    def __init__(self, messages: AsyncIterator[Any], visitor: _Visitor) -> None:
        self._messages = messages
        self._visitor = visitor

    def __aiter__(self) -> _Checked:
        return self

    async def __anext__(self) -> Any:
        message = await self._messages.__anext__()
        self._visitor.check_still()
        self._visitor.check(message)
        return message


def _blame(call: Call, message: Any, token_id: str) -> None:
    """Has the log say who was refused what; never the token itself, which may be a good one."""
    call.token_id = token_id or "(none)"
    if call.named is None and message is not None:
        call.named = subject(message)
