"""`wattwise token`: creates, lists and revokes tokens."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timedelta, timezone

from wattwise.streams import printable

from wattwise_server.errors import StartError
from wattwise_server.options import FILE, add_option, whole_number
from wattwise_server.security.token_file import add_token, read_tokens, remove_token
from wattwise_server.security.tokens import Role, Token, new_token, prefix_fault

_FILE = "wattwise.tokens"
_ROLES = tuple(role.name.lower() for role in Role)
_DAYS = whole_number("DAYS", 1, 36_500)
_PREFIX_HELP = (
    "the start of the job ids that it may access, such as team-a- (team-a also matches team-abc); only an admin or "
    "viewer token may have none"
)


class TokenCommand:
    """The `token` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares create, list and revoke."""
        common = argparse.ArgumentParser(add_help=False)
        add_option(common, "tokens", FILE, _FILE, "token file")
        actions = parser.add_subparsers(metavar="ACTION", required=True)
        create = actions.add_parser(
            "create", parents=[common], help="create a token and print it; it cannot be shown again"
        )
        create.add_argument("--prefix", default="", help=_PREFIX_HELP)
        create.add_argument("--role", choices=_ROLES, required=True, help="what it may call")
        create.add_argument(
            "--expires", type=_lifetime, metavar=_DAYS.metavar, help="days after which it expires; default: never"
        )
        create.set_defaults(handler=_create)
        actions.add_parser("list", parents=[common], help="list the tokens of the file").set_defaults(handler=_list)
        revoke = actions.add_parser("revoke", parents=[common], help="remove a token from the file")
        revoke.add_argument("id", metavar="ID", help="its id, from the list")
        revoke.set_defaults(handler=_revoke)

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the action; returns 0, or 1 if it failed."""
        try:
            args.handler(args)
        except StartError as error:
            print(f"wattwise token: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
            return 1
        return 0


COMMAND = TokenCommand()


def _create(args: argparse.Namespace) -> None:
    role = Role[args.role.upper()]
    if fault := prefix_fault(args.prefix, role):
        raise StartError(f"--prefix {fault}")
    text, token = new_token(role, args.prefix, args.expires)
    add_token(args.tokens, token)
    try:
        # Only the token goes to stdout, so that it can be redirected to a file.
        print(text, flush=True)  # noqa: T201 - the command's answer
    except BaseException:
        # Nobody will ever know it.
        remove_token(args.tokens, token.id)
        raise
    if args.prefix and args.prefix[-1].isalnum():
        _note(f"the prefix {args.prefix!r} also matches the jobs of a {args.prefix + 'x'!r}: end it with a separator")
    _note(f"added {token} to {args.tokens}; it is not shown again. A running server accepts it within two seconds.")


def _list(args: argparse.Namespace) -> None:
    row = "{:12}  {:8}  {:20}  {:20}  {}".format
    lines = [_cells(token) for token in read_tokens(args.tokens).values()]
    for line in (("id", "role", "created", "expires", "prefix"), *lines):
        # The file may have prefixes of other people.
        print(printable(row(*line).rstrip()))  # noqa: T201 - the command's answer


def _revoke(args: argparse.Namespace) -> None:
    token = remove_token(args.tokens, args.id)
    _note(f"removed {token} from {args.tokens}. A running server refuses it within two seconds.")


def _cells(token: Token) -> tuple[str, ...]:
    expires = "never"
    if token.expires is not None:
        expires = _day(token.expires) if token.expires > datetime.now(timezone.utc) else "expired"
    return token.id, token.role.name.lower(), _day(token.created), expires, token.prefix or "(every job)"


def _day(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _lifetime(text: str) -> timedelta:
    return timedelta(days=_DAYS.parse(text))


def _note(message: str) -> None:
    print(f"wattwise token: {printable(message)}", file=sys.stderr)  # noqa: T201 - the command's answer
