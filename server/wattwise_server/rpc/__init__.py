"""The gRPC service: servicers, streams, converters, statuses and what every call passes through.

Only this folder, and `app`, which builds the server, know grpc and protobuf.
"""
