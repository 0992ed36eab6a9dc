"""The Wattwise server."""

# First of all, since it sets how much gRPC logs, and gRPC reads that once.
import wattwise  # noqa: F401
