"""Who may open a log from the console, without a broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txmsg.console.desks import Desk
from txmsg.console.identity import Identity
from txmsg.console.logs import Log
from txmsg.errors import PermissionDenied, Unauthenticated
from txmsg.metaq import location
from txmsg.metaq.access import LogAccess
from txmsg.metaq.local import LocalLog

_ADMIN, _BOB = Identity(name="ann", roles=frozenset({"admin"})), Identity(name="bob")


def desk(who: Identity | None, *, is_refused: bool = False, has_answered: bool = True) -> Desk:
    watch = SimpleNamespace(
        snapshot=object() if has_answered else None, database=SimpleNamespace(token="of-ann"), is_refused=is_refused
    )
    return cast(Desk, SimpleNamespace(who=who, watch=watch, is_refused=is_refused))


def topics(log: LogAccess) -> int:
    return len(log.topics())


async def test_a_log_in_a_directory_is_for_everybody_or_for_admins(tmp_path: Path) -> None:
    LocalLog(tmp_path / "log", append=True).close()
    log = Log("trades", str(tmp_path / "log"))
    assert await log.run(desk(None), topics) == 0  # brokers ask nobody for a token
    assert await log.run(desk(_ADMIN), topics) == 0
    with pytest.raises(PermissionDenied, match="user bob may not see the log trades"):
        await log.run(desk(_BOB), topics)
    for who_knows in (desk(None, is_refused=True), desk(None, has_answered=False)):
        with pytest.raises(Unauthenticated):
            await log.run(who_knows, topics)
    log.close()


async def test_a_server_is_shown_the_token_of_the_visitor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    LocalLog(tmp_path, append=True).close()
    given: dict[str, Any] = {}

    def open_log(where: str, **options: Any) -> LogAccess:
        given.update(options, where=where)
        return LocalLog(tmp_path)

    monkeypatch.setattr(location, "open_log", open_log)
    log = Log("trades", "127.0.0.1:7720")
    await log.run(desk(_ADMIN), topics)
    assert (given["where"], given["token"]) == ("127.0.0.1:7720", "of-ann")
    log.close()
