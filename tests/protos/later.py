"""The contract of a later release, made from this one's: all that the rules for later changes allow to add is added.

Every message has a field more, every enum a value, and every `oneof` a case. Messages of this release become such
ones, with the additions in use, and then bytes again.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, OneofDescriptor
from google.protobuf.message import Message
from wattwise import v1

LATER = 9000
"""The number of the additional value of an enum, and of the additional field of a message."""

_PACKAGE = "wattwise.v1"
_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING


def files() -> list[FileDescriptor]:
    """Returns the protos of this release."""
    modules = sorted(each.name for each in pkgutil.iter_modules(v1.__path__) if each.name.endswith("_pb2"))
    return [importlib.import_module(f"{_PACKAGE}.{name}").DESCRIPTOR for name in modules]


def methods() -> dict[str, Descriptor]:
    """Returns the messages that answer the calls of this release, by the call's name."""
    services = (service for file in files() for service in file.services_by_name.values())
    return {method.name: method.output_type for service in services for method in service.methods}


def enums_of(*roots: Descriptor, beneath: Collection[str] = ()) -> list[EnumDescriptor]:
    """Returns the enums of some messages and of those in them, except of messages with these names; by name."""
    found = {each.enum_type.full_name: each.enum_type for each in _fields(roots, beneath) if each.enum_type}
    return [found[name] for name in sorted(found)]


def oneofs_of(*roots: Descriptor, beneath: Collection[str] = ()) -> list[OneofDescriptor]:
    """Returns the oneofs of some messages and of those in them, likewise."""
    chosen = (field.containing_oneof for field in _fields(roots, beneath))
    found = {each.full_name: each for each in chosen if each is not None and _real(each)}
    return [found[name] for name in sorted(found)]


def _fields(roots: Collection[Descriptor], beneath: Collection[str]) -> Iterator[FieldDescriptor]:
    seen: set[str] = set()
    waiting = [*roots]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.name in beneath or not _ours(message):
            continue
        seen.add(message.full_name)
        yield from message.fields
        waiting += [each.message_type for each in message.fields if each.message_type is not None]


def _ours(message: Descriptor) -> bool:
    return message.file.package == _PACKAGE and not message.GetOptions().map_entry


def _real(oneof: OneofDescriptor) -> bool:
    """Returns whether the protos say `oneof`: an `optional` field is a oneof of its own."""
    return not (len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}")


def _extend(message: descriptor_pb2.DescriptorProto) -> None:
    if message.options.map_entry:
        return
    for nested in message.nested_type:
        _extend(nested)
    for enum in message.enum_type:
        _extend_enum(enum)
    own = {field.oneof_index for field in message.field if field.proto3_optional}
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for place, oneof in enumerate(message.oneof_decl):
        if place not in own:
            case = message.field.add(name=f"later_{oneof.name}", number=LATER + 1 + place, type=_TEXT, label=label)
            case.oneof_index = place
    message.field.add(name="later_field", number=LATER, type=_TEXT, label=label)


def _extend_enum(enum: descriptor_pb2.EnumDescriptorProto) -> None:
    prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
    enum.value.add(name=f"{prefix}LATER", number=LATER)


def _built() -> descriptor_pool.DescriptorPool:
    pool, known = descriptor_pool.DescriptorPool(), set[str]()

    def add(file: FileDescriptor) -> None:
        if file.name in known:
            return
        known.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        if file.package == _PACKAGE:
            for message in proto.message_type:
                _extend(message)
            for enum in proto.enum_type:
                _extend_enum(enum)
        pool.AddSerializedFile(proto.SerializeToString())

    for each in files():
        add(each)
    return pool


_POOL = _built()


class Later:
    """What a later release makes of messages: it sets the additional fields.

    Attributes:
        enums: The enums of whose fields it sets those that are set to the additional value, by full name.
        oneofs: The oneofs of which it chooses the additional case, likewise.
        beneath: Names of messages that stay as they are, with all that is in them.
    """

    def __init__(
        self,
        *,
        enums: Collection[EnumDescriptor] = (),
        oneofs: Collection[OneofDescriptor] = (),
        beneath: Collection[str] = (),
    ) -> None:
        self.enums = {each.full_name for each in enums}
        self.oneofs = {each.full_name for each in oneofs}
        self.beneath = beneath

    def __call__(self, message: Message) -> None:
        """Changes a message of this release to what it is after its way through the other release's bytes."""
        later: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(message.DESCRIPTOR.full_name))
        sent = later.FromString(message.SerializeToString())
        self._change(sent)
        message.ParseFromString(sent.SerializeToString())

    def _change(self, message: Any) -> None:
        kind: Descriptor = message.DESCRIPTOR
        if not _ours(kind) or kind.name in self.beneath:
            return
        for field, value in message.ListFields():
            if field.enum_type is not None and field.enum_type.full_name in self.enums:
                if isinstance(value, int):
                    setattr(message, field.name, LATER)
                else:
                    value[:] = [LATER] * len(value)
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                for each in (value,) if isinstance(value, Message) else value:
                    self._change(each)
        for oneof in kind.oneofs:
            if oneof.full_name in self.oneofs and message.WhichOneof(oneof.name):
                setattr(message, f"later_{oneof.name}", "later")
        message.later_field = "later"


def everywhere(change: Callable[[Any], object]) -> dict[str, Callable[[Any], object]]:
    """Returns the change for the answers to all calls."""
    return dict.fromkeys(methods(), change)
