"""The page of the audit log without a broker: its requests and its entries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.console.answering import answered_console, answering, hostile
from tests.methods import made
from txmsg.administration.audit import AuditEntry, AuditPage, AuditService
from txmsg.administration.settings import SettingHistory
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.wire.method import Method, checked

_ENTRY = AuditEntry(
    id=7,
    at=datetime(2026, 5, 28, tzinfo=UTC),
    who="ada",
    address="10.0.0.7:4711",
    action="topic.alter",
    target="orders",
    before={"queues": 4, "durability": "sync", "gone": True},
    after={"queues": 8, "durability": "sync", "rate": 1.5},
)


def answer(reply: Any) -> Any:
    return AuditPage(entries=[_ENTRY], next=6) if reply is AuditPage else hostile(reply)


async def test_audit_entry_shows_user_change_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, answer)
    async with answered_console() as found:
        text = (await found.client.get("/notify/audit")).text
    for says in ("ada", "10.0.0.7:4711", "topic.alter", "orders", "queues: 4 → 8", "rate: 1.5", "gone: true → –"):
        assert says in text
    assert "durability" not in text
    assert 'href="/notify/audit?before=6"' in text
    assert '<section class="panel" id="settings">' in text


async def test_entries_are_filtered_and_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    answering(monkeypatch, answer)
    async with answered_console() as found:

        async def ask(_: DatabaseBrokers, method: Method[Any, Any], request: Any) -> Any:
            requests.append((method, request))
            checked(request)
            return answer(method.reply)

        monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
        query = {"who": " ada ", "action": "topic", "target": "orders", "since": "2026-05-01T10:00:00Z", "before": "9"}
        text = (await found.client.get("/notify/audit", params=query)).text
        wrong = await found.client.get("/notify/audit", params={"before": "-1"})
    (method, request), *_ = requests
    assert method is AuditService.list
    assert (request.who, request.action, request.target, request.before_id) == ("ada", "topic", "orders", 9)
    assert request.since == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert 'id="settings"' not in text  # their history is not filtered
    assert "since=2026-05-01T10" in text.partition('rel="next" href="')[2]
    assert wrong.status_code == 400
    assert "whole number" in wrong.text


async def test_unfiltered_audit_includes_the_history_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_yet(reply: Any) -> Any:
        return made(reply) if reply in {AuditPage, SettingHistory} else hostile(reply)

    answering(monkeypatch, none_yet)
    async with answered_console() as found:
        text = (await found.client.get("/notify/audit")).text
    assert "Nothing has been changed yet." in text
    assert 'id="settings"' not in text
