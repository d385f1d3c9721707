"""Settings of applications: watched while they change, through the loss of brokers, and from the local copy."""

from __future__ import annotations

import asyncio
import json
import queue
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of
from tests.ports import own_port
from txmsg.client import AsyncSettings, Settings
from txmsg.errors import BrokerUnavailable, MisuseError

WAIT_S = 120.0


def config(broker: BrokerProcess, *args: str) -> Any:
    return json_of("config", *args, "--broker", broker.address)


def test_a_watcher_is_called_with_the_value_and_each_change(broker: BrokerProcess) -> None:
    config(broker, "set", "app.activity.lottery", "off")
    values: queue.Queue[str | None] = queue.Queue()
    with Settings(broker.address) as settings:
        settings.watch("activity.lottery", values.put)
        assert values.get(timeout=WAIT_S) == "off"
        config(broker, "set", "app.activity.other", "x")
        config(broker, "set", "app.activity.lottery", "on")
        assert values.get(timeout=WAIT_S) == "on"
        assert settings.get("activity.lottery") == "on"
        config(broker, "unset", "app.activity.lottery")
        assert values.get(timeout=WAIT_S) is None
        assert settings.get("activity.lottery", "off") == "off"
    assert settings.get("activity.other") == "x"


def test_watching_continues_when_a_broker_is_killed(start_broker: StartBroker) -> None:
    here, there = start_broker(), start_broker()
    values: queue.Queue[str | None] = queue.Queue()
    with Settings(f"{here.address},{there.address}") as settings:
        settings.watch("a", values.put)
        assert values.get(timeout=WAIT_S) is None
        here.kill()
        config(there, "set", "app.a", "1")
        assert values.get(timeout=WAIT_S) == "1"
        here.start()
        there.kill()
        config(here, "set", "app.a", "2")
        assert values.get(timeout=WAIT_S) == "2"
    assert values.empty()


def test_a_starting_broker_does_not_report_all_settings_as_unset(broker: BrokerProcess) -> None:
    config(broker, "set", "app.a", "1")
    values: queue.Queue[str | None] = queue.Queue()
    with Settings(broker.address) as settings:
        settings.watch("a", values.put)
        broker.restart(kill=True)
        config(broker, "set", "app.a", "2")
        assert [values.get(timeout=WAIT_S) for _ in range(2)] == ["1", "2"]


def test_the_local_copy_is_used_only_while_all_brokers_are_unavailable(broker: BrokerProcess, tmp_path: Path) -> None:
    copy = tmp_path / "settings.json"
    config(broker, "set", "app.a", "1")
    with Settings(broker.address, copy=copy):
        pass
    broker.kill()
    values: queue.Queue[str | None] = queue.Queue()
    with Settings(broker.address, copy=copy, timeout_s=0.2) as settings:
        settings.watch("a", values.put)
        assert values.get(timeout=WAIT_S) == "1"
        broker.start()
        config(broker, "set", "app.a", "2")
        assert values.get(timeout=WAIT_S) == "2"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, "{", "[]", '{"a": 1}'])
def test_without_a_broker_and_a_readable_copy_the_start_fails(tmp_path: Path, content: str | None) -> None:
    copy = tmp_path / "settings.json"
    if content is not None:
        copy.write_text(content)
    with pytest.raises(BrokerUnavailable, match=r"sent the settings within 0\.2 s, and there is no copy of them"):
        Settings(f"127.0.0.1:{own_port()}", copy=copy, timeout_s=0.2).start()


def test_an_unwritable_copy_does_not_stop_watching(broker: BrokerProcess, tmp_path: Path) -> None:
    config(broker, "set", "app.a", "1")
    with Settings(broker.address, copy=tmp_path / "missing" / "settings.json") as settings:
        assert settings.get("a") == "1"


async def test_async_programs_watch_on_their_own_event_loop(broker: BrokerProcess, tmp_path: Path) -> None:
    copy = tmp_path / "settings.json"
    await asyncio.to_thread(config, broker, "set", "app.x.a", "1")
    await asyncio.to_thread(config, broker, "set", "app.y.a", "1")
    changed: asyncio.Queue[str | None] = asyncio.Queue()
    async with AsyncSettings(broker.address, prefix="x.", copy=copy) as settings:
        settings.watch("x.a", lambda _: 1 / 0)
        settings.watch("x.a", changed.put_nowait)
        assert await changed.get() == "1"
        assert settings.get("y.a") is None
        await asyncio.to_thread(config, broker, "set", "app.x.a", "2")
        async with asyncio.timeout(WAIT_S):
            assert await changed.get() == "2"
        with pytest.raises(MisuseError, match="does not begin with the prefix"):
            settings.watch("y.a", changed.put_nowait)
    await settings.close()
    assert json.loads(copy.read_text()) == {"x.a": "2"}


async def test_a_watcher_may_watch_another_setting_when_called(broker: BrokerProcess) -> None:
    changed: asyncio.Queue[str | None] = asyncio.Queue()
    async with AsyncSettings(broker.address) as settings:

        def also_b(value: str | None) -> None:
            if value is not None:
                settings.watch("b", changed.put_nowait)
                settings.watch("a", changed.put_nowait)

        settings.watch("a", also_b)
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(config, broker, "set", "app.a", "1")
            assert [await changed.get() for _ in range(2)] == [None, "1"]
            await asyncio.to_thread(config, broker, "set", "app.b", "2")
            assert await changed.get() == "2"


async def test_watching_continues_after_an_unexpected_error(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    changed: asyncio.Queue[str | None] = asyncio.Queue()
    async with AsyncSettings(broker.address, copy="a name with \0 in it") as settings:
        settings.watch("a", changed.put_nowait)
        assert await changed.get() is None
        async with asyncio.timeout(WAIT_S):
            for value in ("1", "2"):
                await asyncio.to_thread(config, broker, "set", "app.a", value)
                assert await changed.get() == value
        assert "following settings failed; retrying" in caplog.text
        settings._copy = None


async def test_a_second_start_does_not_report_all_settings_as_unset(broker: BrokerProcess) -> None:
    await asyncio.to_thread(config, broker, "set", "app.a", "1")
    told: list[str | None] = []
    settings = AsyncSettings(broker.address)
    await settings.start()
    settings.watch("a", told.append)
    await settings.close()
    async with settings:
        assert told == ["1"]


async def test_concurrent_starts_create_one_watching_task(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = AsyncSettings(broker.address, copy=tmp_path / "copy")
    await asyncio.gather(settings.start(), settings.start())
    assert len(followers()) == 1
    await settings.close()
    assert followers() == []


async def test_a_cancelled_start_leaves_no_watching_task() -> None:
    settings = AsyncSettings(f"127.0.0.1:{own_port()}", timeout_s=WAIT_S)
    starting = asyncio.create_task(settings.start())
    await asyncio.sleep(0)
    assert followers()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert followers() == []


def followers() -> list[asyncio.Task[Any]]:
    return [each for each in asyncio.all_tasks() if each.get_name() == "txmsg-settings"]


def test_settings_need_one_notify_database_and_a_start() -> None:
    with pytest.raises(MisuseError, match="brokers of 2 Notify databases"):
        Settings("a:1;b:1")
    with pytest.raises(MisuseError, match="call start"):
        Settings("a:1").watch("a", print)
