"""The gRPC service: servicers, streams, converters, statuses and what every call passes through."""
