"""Calls to the server: the channel, credentials, retries, one method per RPC.

Users import the protobuf messages that the calls return, and their enums, from here: `from wattwise.rpc import v1`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattwise import v1 as v1
else:

    def __getattr__(name: str) -> object:
        # Imported on first use: most modules of this package are needed without the messages.
        if name == "v1":
            return importlib.import_module("wattwise.v1")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
