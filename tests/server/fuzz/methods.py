"""Every method of the server, from the protos."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from wattwise import v1


def _methods(*files: Any) -> tuple[MethodDescriptor, ...]:
    return tuple(method for file in files for service in file.services_by_name.values() for method in service.methods)


METHODS = _methods(
    *(
        request.DESCRIPTOR.file
        for request in (v1.RegisterJobRequest, v1.GetJobRequest, v1.DeleteJobRequest, v1.GetServerInfoRequest)
    )
)
OTHERS = _methods(health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
"""The standard services of the server."""


def path(method: MethodDescriptor) -> str:
    """The full name of a method."""
    return f"/{method.containing_service.full_name}/{method.name}"
