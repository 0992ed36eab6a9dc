"""A server that lies, breaks the protocol or floods: for tests of every client.

`server` runs it, `behaviours` is the table of what it does, `frames` has what a port may send that is no gRPC server,
`pretend` is the Python client's example of a training loop, and `trials` runs such an example and judges it.
"""
