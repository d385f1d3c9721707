"""Output of commands for withheld headers and bodies: the reason, rather than nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.methods import made
from txmsg.administration.dead_letters import DeadLetter, DeadLetterPage
from txmsg.administration.halves import HalfMessage, HalfPage
from txmsg.administration.messages import FoundMessage, MessagePage
from txmsg.ops.cli import connections, half, message
from txmsg.ops.cli.main import main
from txmsg.wire.method import Method

ID = UUID("0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
_WHICH: dict[str, Any] = {"transaction_id": ID.bytes, "topic": "orders", "withheld": True}
_AT = datetime(2026, 5, 1, tzinfo=UTC)
_REPLIES: dict[str, Any] = {
    "Admin/ListHalves": HalfPage(
        halves=[made(HalfMessage, transaction_id=ID, topic="orders", born_at=_AT, stored_at=_AT, is_withheld=True)]
    ),
    "Messages/Find": MessagePage(
        messages=[made(FoundMessage, transaction_id=ID, topic="orders", born_at=_AT, is_withheld=True)]
    ),
    "DeadLetters/List": DeadLetterPage(letters=[made(DeadLetter, topic="orders", is_withheld=True)]),
}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("half", "show", str(ID)), "halves"),
        (("message", "find", "--id", str(ID), "--bodies"), "messages"),
        (("dead-letter", "show", str(ID)), "dead_letters"),
    ],
)
def test_withheld_fields_are_reported_with_the_missing_right(
    words: tuple[str, ...], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: object, method: Method[Any, Any], __: Any) -> Any:
        return _REPLIES[method.name]

    for module in (connections, half, message):
        monkeypatch.setattr(module, "ask_broker", ask)
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    assert "headers and body need `read topic:orders`" in told.output
    (one,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)[field]
    assert (one["headers"], one["body"]) == (None, None)
    assert "read topic:orders" in one["withheld"]
