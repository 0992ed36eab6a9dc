"""What gRPC says of a connection that could not be made safe, in a user's words."""

from __future__ import annotations

_UNKNOWN_AUTHORITY = (
    "its certificate is of an authority that is not known here: give the authority's file as WATTWISE_TLS_CA or "
    "Credentials(tls_ca=...)"
)
_OTHER_NAME = "its certificate is for another host name: use a name that is in it, or have one made for this name"

# In gRPC's words, which differ a little from version to version.
_CERTIFICATE_FAULTS = {
    "unable to get local issuer certificate": _UNKNOWN_AUTHORITY,
    "self signed certificate": _UNKNOWN_AUTHORITY,
    "self-signed certificate": _UNKNOWN_AUTHORITY,
    "Hostname Verification Check failed": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
    "certificate has expired": "its certificate, or its authority's, has expired: the operator must renew it",
    "certificate is not yet valid": "its certificate is not valid yet: is the clock of this machine right?",
    "CERTIFICATE_VERIFY_FAILED": "its certificate cannot be verified",
    "WRONG_VERSION_NUMBER": "it does not talk TLS: turn TLS on there, or off here",
}
_HUNG_UP = "; it hung up at once: does it want TLS (WATTWISE_TLS_CA, or WATTWISE_TLS=1), or a client certificate?"


def certificate_fault(said: str) -> str | None:
    """Why the server cannot be trusted, if that is what a status says; no retry helps then.

    Args:
        said: the message of an UNAVAILABLE status.
    """
    return next((words for sign, words in _CERTIFICATE_FAULTS.items() if sign in said), None)


def hint(said: str) -> str:
    """What may be behind a connection that was closed while it was made; empty for whatever else happened."""
    return _HUNG_UP if "failed to connect" in said and "Socket closed" in said else ""
