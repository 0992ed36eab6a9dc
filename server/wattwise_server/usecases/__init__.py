"""What callers can ask for: load, decide, save, each in one transaction; no gRPC, no SQL."""
