"""The use cases: load, decide, save, each in one transaction; no gRPC, no SQL."""
