"""Access to a log in the console, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.console.desk import desk_of
from tests.console.served import IDLE, asked_console
from txmsg.errors import BrokerUnavailable, MisuseError, PermissionDenied, Unauthenticated
from txmsg.metaq import location
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.local import LocalLog
from txmsg.ops.cli.console import _logs
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.user_databases import UserDatabase, UserDatabases

_ADMIN, _BOB = UserIdentity(name="ann", roles=frozenset({"admin"})), UserIdentity(name="bob")


def desk(who: UserIdentity | None, *, is_refused: bool = False, has_answered: bool = True) -> UserDatabase:
    made = desk_of(who, token="of-ann", rates={} if has_answered else None)
    made.watch.is_refused = is_refused
    return made


def topics(log: LogAccess) -> int:
    return len(log.topics())


async def test_log_in_a_directory_is_open_to_all_without_login_and_else_to_admins(tmp_path: Path) -> None:
    LocalLog(tmp_path / "log", append=True).close()
    log = NamedLog("trades", str(tmp_path / "log"))
    assert await log.run(desk(None), topics) == 0  # brokers require no tokens
    assert await log.run(desk(_ADMIN), topics) == 0
    with pytest.raises(PermissionDenied, match="user bob may not see the log trades"):
        await log.run(desk(_BOB), topics)
    for who_knows in (desk(None, is_refused=True), desk(None, has_answered=False)):
        with pytest.raises(Unauthenticated):
            await log.run(who_knows, topics)
    log.close()


async def test_log_server_gets_the_token_of_the_visitor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    LocalLog(tmp_path, append=True).close()
    given: dict[str, Any] = {}

    def open_log(where: str, **options: Any) -> LogAccess:
        given.update(options, where=where)
        return LocalLog(tmp_path)

    monkeypatch.setattr(location, "open_log", open_log)
    log = NamedLog("trades", "127.0.0.1:7720")
    await log.run(desk(_ADMIN), topics)
    assert (given["where"], given["token"]) == ("127.0.0.1:7720", "of-ann")
    log.close()


def test_a_log_belongs_to_one_database() -> None:
    assert _logs(("trades=here:1", "/var/log"), ["notify"]) == {"notify": {"trades": "here:1", "metaq": "/var/log"}}
    given = ("orders/metaq=here:1", "trades/metaq=./a=b")
    assert _logs(given, ["orders", "trades"]) == {"orders": {"metaq": "here:1"}, "trades": {"metaq": "./a=b"}}
    for text in ("here:1", "metaq=here:1", "other/metaq=here:1"):
        with pytest.raises(MisuseError, match=f"--log {text} names no database of orders, trades"):
            _logs((text,), ["orders", "trades"])


async def test_users_of_another_database_cannot_read_logs_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_log(*_: Any, token: str, **__: Any) -> LogAccess:
        tokens.append(token)
        raise BrokerUnavailable("it is away")

    tokens: list[str] = []
    monkeypatch.setattr(location, "open_log", open_log)
    desks = UserDatabases({"orders": ["127.0.0.1:1"], "trades": ["127.0.0.1:1"]}, IDLE)
    logs = {"trades": {"metaq": NamedLog("metaq", "127.0.0.1:7720")}}
    async with asked_console(desks, logs=logs) as asked:
        for name, desk in desks.open.items():
            desk.watch.trouble, desk.watch.database.token = "no broker answers", f"of {name}"
        for path in ("/orders/logs/metaq", "/orders/mirrors", "/trades/logs/metaq"):
            await asked.client.get(path)
    assert tokens == ["of trades"]
    logs["trades"]["metaq"].close()
