"""Each string that a method of any service takes: none makes a server fail, and a NUL is refused in words.

Built from the protocol's descriptors, so a method or a field that is added is asked without a word here.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from uuid import UUID

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message as Proto

import txmsg.wire.v1
from tests.broker_process import BrokerProcess
from tests.metaq.servers import served
from tests.raw_client import RawClient
from txmsg.errors import TxmsgError
from txmsg.metaq.server.config import MetaQConfig

_MODULES = [
    import_module(f"txmsg.wire.v1.{each.name}")
    for each in iter_modules(txmsg.wire.v1.__path__)
    if each.name.endswith("_pb2")
]
METHODS: dict[str, MethodDescriptor] = {
    f"{service.name}/{method.name}": method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OF_LOGS = {name for name in METHODS if name.startswith("MetaQ")}
WORDS = {"NUL": "a\0b", "empty": "", "long": "x" * 100_000, "odd": "\U0001f600\u2028\x1b[31m\r\n%s{0}'\"--"}
ID = UUID("0197f3a2-8d5e-7c11-b0a4-000000000007")
PLAUSIBLE: dict[str, Any] = {
    "broker": "b",
    "client_id": "c",
    "durability": "sync",
    "group": "g",
    "id": f"{ID}.0",
    "key": "k",
    "max_messages": 1,
    "n": 0,
    "name": "t",
    "producer_group": "g",
    "topic": "t",
    "transaction_id": ID.bytes,
    "transaction_ids": ID.bytes,
}
"""With these in the other fields a method gets as far as the one under test."""
Path = tuple[str, ...]


def strings(descriptor: Descriptor, above: tuple[Descriptor, ...] = ()) -> Iterator[Path]:
    """The way to each string field in a message, through its messages."""
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (field.name,)
        elif field.message_type is not None and field.message_type not in above:
            for path in strings(field.message_type, (*above, descriptor)):
                yield (field.name, *path)


def request_with(descriptor: Descriptor, path: Path, word: str, *, others: bool) -> Proto:
    """A request with this string in there, and what is plausible in its other fields, or nothing."""
    request = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_under_test = field.name == path[0]
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            if is_under_test:
                inner = request_with(field.message_type, path[1:], word, others=others)
                place = getattr(request, field.name)
                (place.append if field.is_repeated else place.CopyFrom)(inner)
        elif field.message_type is not None:
            if is_under_test:
                is_text = field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING
                getattr(request, field.name)[word] = word if is_text else 1
        elif is_under_test or (others and field.name in PLAUSIBLE and field.containing_oneof is None):
            value = word if is_under_test else PLAUSIBLE[field.name]
            if field.is_repeated:
                getattr(request, field.name).append(value)
            else:
                setattr(request, field.name, value)
    return request


def answer(client: RawClient, name: str, request: Proto) -> TxmsgError | None:
    """With which error the request is refused, if it is."""
    return client.answer(client.begin(name, request.SerializeToString())).error


def ask_all(client: RawClient, names: set[str]) -> None:
    """Puts each word into each string of these methods."""
    failures = []
    refused = 0
    for name in sorted(names):
        descriptor = METHODS[name].input_type
        for path in strings(descriptor):
            for kind, word in WORDS.items():
                for others in (True, False):
                    error = answer(client, name, request_with(descriptor, path, word, others=others))
                    refused += kind == "NUL" and "NUL" in str(error)
                    if type(error) is TxmsgError:
                        failures.append(f"{name} {'.'.join(path)} {kind}: {error}")
    assert failures == []
    assert refused, "no method looked at a NUL"


def test_no_string_makes_a_broker_fail(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        ask_all(client, METHODS.keys() - OF_LOGS)
    assert "Traceback" not in broker.log.read_text()


def test_no_string_makes_a_server_of_a_log_fail(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")) as address:
        with RawClient(address) as client:
            ask_all(client, OF_LOGS)
    assert "Traceback" not in caplog.text
