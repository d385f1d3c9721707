"""What commands print of headers and bodies that brokers withhold: why, rather than nothing."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from google.protobuf.message import Message

from txmsg.cli import connections, half, message
from txmsg.cli.main import main
from txmsg.wire.method import Method
from txmsg.wire.v1 import dead_letters_pb2, messages_pb2, txmsg_pb2

ID = UUID("0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
_WHICH: dict[str, Any] = {"transaction_id": ID.bytes, "topic": "orders", "withheld": True}
_REPLIES: dict[str, Message] = {
    "Admin/ListHalves": txmsg_pb2.ListHalvesReply(halves=[txmsg_pb2.Half(**_WHICH)]),
    "Messages/Find": messages_pb2.FindMessagesReply(messages=[messages_pb2.FoundMessage(**_WHICH)]),
    "DeadLetters/List": dead_letters_pb2.ListDeadLettersReply(letters=[dead_letters_pb2.DeadLetter(**_WHICH)]),
}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("half", "show", str(ID)), "halves"),
        (("message", "find", "--id", str(ID), "--bodies"), "messages"),
        (("dead-letter", "show", str(ID)), "dead_letters"),
    ],
)
def test_what_is_withheld_is_said_to_be(words: tuple[str, ...], field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: object, method: Method[Any, Any], __: Message) -> Message:
        return _REPLIES[method.name]

    for module in (connections, message):
        monkeypatch.setattr(module, "ask_broker", ask)
    monkeypatch.setattr(half, "asker", lambda address: lambda method, request: ask(address, method, request))
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    assert "headers and body need `read topic:orders`" in told.output
    (one,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)[field]
    assert (one["headers"], one["body"]) == (None, None)
    assert "read topic:orders" in one["withheld"]
