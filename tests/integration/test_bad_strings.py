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

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message as Proto

import txmsg.wire.v1
from tests.broker_process import BrokerProcess
from tests.metaq.servers import served
from txmsg.errors import TxmsgError, error_of_code
from txmsg.metaq.server.config import MetaQConfig
from txmsg.wire.codec import CHANNEL_OPTIONS, CODE_KEY

_TIMEOUT_S = 20.0
_MODULES = [
    import_module(f"txmsg.wire.v1.{each.name}")
    for each in iter_modules(txmsg.wire.v1.__path__)
    if each.name.endswith("_pb2")
]
METHODS: dict[str, MethodDescriptor] = {
    f"{service.full_name}/{method.name}": method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OF_LOGS = {name for name in METHODS if name.startswith("txmsg.v1.MetaQ")}
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
                getattr(request, field.name)[word] = word
        elif is_under_test or (others and field.name in PLAUSIBLE and field.containing_oneof is None):
            value = word if is_under_test else PLAUSIBLE[field.name]
            if field.is_repeated:
                getattr(request, field.name).append(value)
            else:
                setattr(request, field.name, value)
    return request


def answer(channel: grpc.Channel, name: str, request: Proto) -> tuple[str, str]:
    """With which code of errors.py the request is refused, and what is told; both are "" for one that is not."""
    method = METHODS[name]
    data = request.SerializeToString()
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    call = kinds[method.client_streaming, method.server_streaming](f"/{name}")
    try:
        reply = call(iter([data]) if method.client_streaming else data, timeout=_TIMEOUT_S)
        if method.server_streaming:
            list(reply)
    except grpc.RpcError as exc:
        if not isinstance(exc, grpc.Call):
            raise
        return str(dict(exc.trailing_metadata() or ()).get(CODE_KEY)), f"{exc.code().name}: {exc.details()}"
    return "", ""


def ask_all(channel: grpc.Channel, names: set[str]) -> None:
    """Puts each word into each string of these methods."""
    failures = []
    refused = 0
    for name in sorted(names):
        descriptor = METHODS[name].input_type
        for path in strings(descriptor):
            for kind, word in WORDS.items():
                for others in (True, False):
                    code, told = answer(channel, name, request_with(descriptor, path, word, others=others))
                    refused += kind == "NUL" and "NUL" in told
                    if told and type(error_of_code(code, "")) is TxmsgError:
                        failures.append(f"{name} {'.'.join(path)} {kind}: {told}")
    assert failures == []
    assert refused, "no method looked at a NUL"


def test_no_string_makes_a_broker_fail(broker: BrokerProcess) -> None:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        ask_all(channel, METHODS.keys() - OF_LOGS)
    assert "Traceback" not in broker.log.read_text()


def test_no_string_makes_a_server_of_a_log_fail(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(MetaQConfig(root=tmp_path / "log", listen="127.0.0.1:0")) as address:
        with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            ask_all(channel, OF_LOGS)
    assert "Traceback" not in caplog.text
