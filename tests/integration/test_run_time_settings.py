"""Settings changed at run time through one broker apply to all without a restart and keep their history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import asked, json_of, said
from tests.waiting import until
from txmsg.administration.settings import SettingChange, UsedSetting
from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.server import BrokerServer
from txmsg.broker.settings import RunTimeSettings
from txmsg.broker.store.connect import Pool, open_pool
from txmsg.broker.store.settings import SettingStore
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, MessageTooLarge, MisuseError, UnknownTopic
from txmsg.message import Message
from txmsg.settings.catalogue import SettingKind, settings_of
from txmsg.settings.live import GivenSettings, replaced, value_in
from txmsg.wire.access.limits import UserLimits

LIVE = {each.name: each for each in settings_of(BrokerConfig, "broker") if each.live}


def config(broker: BrokerProcess, *args: str) -> Any:
    return json_of("config", *args, "--broker", broker.address)


def refused(broker: BrokerProcess, *args: str) -> str:
    return said("config", *args, "--broker", broker.address, status=1)


def used(broker: BrokerProcess, name: str) -> Any:
    return config(broker, "show", name)["used"][name]


def taken(broker: BrokerProcess, version: int) -> None:
    """Return when the broker has this version."""
    until(lambda: config(broker, "show")["version"] >= version)


# ---- brokers apply changes


def test_a_change_at_one_broker_takes_effect_at_another_without_a_restart(start_broker: StartBroker) -> None:
    here, there = start_broker(), start_broker()
    config(here, "set", "broker.topic_auto_create", "no")
    config(here, "set", "broker.body_size_bytes_max", "1KiB")
    version = config(here, "set", "broker.topic_queues", "9")["version"]
    taken(there, version)

    json_of("topic", "create", "nine", "--broker", there.address)
    assert json_of("topic", "show", "nine", "--broker", there.address)["queues"] == 9
    with Producer(there.address, group="g") as producer:
        with pytest.raises(UnknownTopic):
            producer.send(Message("unheard.of", b"x"))
        with pytest.raises(MessageTooLarge):
            producer.send(Message("nine", b"x" * 1025))
        taken(there, config(here, "unset", "broker.body_size_bytes_max")["version"])
        producer.send(Message("nine", b"x" * 1025))


def test_run_time_settings_take_precedence_over_options_and_survive_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker("--topic-queues", "3")
    assert used(broker, "broker.topic_queues") == {"value": "3", "source": "--topic-queues"}
    config(broker, "set", "broker.topic_queues", "9")
    broker.restart()
    until(lambda: used(broker, "broker.topic_queues")["value"] == "9")
    assert used(broker, "broker.topic_queues")["source"].startswith("version 1, by ")
    config(broker, "unset", "broker.topic_queues")
    until(lambda: used(broker, "broker.topic_queues") == {"value": "3", "source": "--topic-queues"})


def test_a_setting_can_apply_to_a_single_broker(start_broker: StartBroker) -> None:
    here, there = start_broker("--id", "a"), start_broker("--id", "b")
    config(here, "set", "broker.topic_queues", "5")
    version = config(here, "set", "broker.topic_queues@b", "6")["version"]
    for broker, value in ((here, "5"), (there, "6")):
        taken(broker, version)
        assert used(broker, "broker.topic_queues")["value"] == value


def test_the_log_level_changes_while_a_broker_runs(start_broker: StartBroker) -> None:
    broker = start_broker("--log-level", "error")
    config(broker, "set", "broker.log_level", "info")
    until(lambda: "settings of version 1 are applied" in broker.log.read_text())


async def test_every_live_setting_reaches_the_part_that_uses_it(notify_url: str) -> None:
    pool, given = open_pool(notify_url), BrokerConfig(storage=notify_url, authentication=True)
    broker = BrokerServer(GivenSettings(given), pool, pool, Segments(pool, given), asyncio.Event())
    storage, sending, checking = broker.parts.storage, broker.parts.sending, broker.parts.checking
    delivery, admitting = broker.parts.delivering.delivery, broker.parts.admitting
    assert admitting.access is not None
    guard = admitting.access.guard
    holders: dict[str, Callable[[], list[object]]] = {
        **dict.fromkeys(("log_level", "stop_timeout_s"), lambda: [broker.parts.config]),
        "topic_auto_create": lambda: [{"topic_auto_create": storage.topics._auto_create}],
        "topic_queues": lambda: [{"topic_queues": storage.topics._queues}],
        "body_size_bytes_max": lambda: [{"body_size_bytes_max": broker.parts.service.body_size_bytes_max}],
        **dict.fromkeys(
            ("check_interval_s", "checks_max", "check_timeout_s", "no_client_park_s"),
            lambda: [checking.policies._config],
        ),
        "first_check_s": lambda: [checking.policies._config, *(each._config for each in sending.writers._all)],
        **dict.fromkeys(("retention_s", "retention_max_s"), lambda: [storage.retention._config]),
        "retention_size_bytes": lambda: [storage.retention._config, storage.segments._config],
        **dict.fromkeys(
            ("outcome_memory_s", "segment_age_s", "segment_size_bytes", "segments_max"),
            lambda: [storage.segments._config],
        ),
        **dict.fromkeys(
            ("batch_items_max", "batch_size_bytes_max", "waiting_items_max", "waiting_size_bytes_max"),
            lambda: [each._config for each in sending.writers._all],
        ),
        **dict.fromkeys(
            ("delivery.pause_failures", "delivery.pause_retries", "delivery.held_s_max", "delivery.hand_over_s"),
            lambda: [{"delivery": delivery.state.config}],
        ),
        "delivery.memory_size_bytes_max": lambda: [
            {"delivery": {"memory_size_bytes_max": delivery.state.memory.size_bytes_max}}
        ],
        **dict.fromkeys([name for name in LIVE if name.startswith("alerts.")], lambda: [broker.alerting._config]),
        "audit_retention_s": lambda: [admitting.audit._config],
        "check_loop.in_flight_max": lambda: [{"check_loop": checking.checks._config}],
    }
    holders |= dict.fromkeys(
        [name for name in LIVE if name.startswith("user.")], lambda: [{"user": limits_as_settings(guard.limits)}]
    )
    assert holders.keys() == LIVE.keys()
    for name, setting in LIVE.items():
        before: Any = value_in(given, name)
        texts = {"log_level": "debug", "alerts.off": "TxmsgDeadLetters"}
        after = texts.get(name) or (
            not before if isinstance(before, bool) else before + (0.5 if name.endswith("_ratio") else 1)
        )
        setting.check(after)
        storage.settings.apply_settings(replaced(given, {name: after}))
        for holder in holders[name]():
            assert _in(holder, name) == after, name
    storage.settings.apply_settings(given)


def limits_as_settings(limits: UserLimits) -> dict[str, float]:
    """The limits by name of setting."""
    counts = {"connections", "topics", "groups"}
    return {f"{name}_max" if name in counts else name: value for name, value in asdict(limits).items()}


def _in(holder: object, name: str) -> object:
    for part in name.split("."):
        holder = holder[part] if isinstance(holder, dict) else getattr(holder, part)
    return holder


# ---- refusals


def settings_in(pool: Pool, url: str, **config: float) -> RunTimeSettings:
    """Return the settings as known to a separate broker."""
    store = SettingStore(pool)
    given = BrokerConfig(storage=url, **config)  # type: ignore[arg-type]
    return RunTimeSettings(GivenSettings(given), store, store)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("set", "broker.topic_queue", "9"), "did you mean broker.topic_queues?"),
        (("set", "brokr.topic_queues", "9"), "did you mean broker?"),
        (("set", "broker.topic_queues", "0"), "the value '0' is not a whole number from 1 to 1024"),
        (("set", "broker.listen", "x:1"), "cannot change at run time: give --listen when brokers are restarted"),
        (("set", "broker.retention_max_s", "1d", "--yes"), "is shorter than retention_s=604800.0"),
        (("set", "app.", "x"), "is not the name of a setting"),
        (("set", "app.a", "x" * 65_537), "must be at most 65536 bytes"),
        (("rollback", "app.a", "7", "--yes"), "no change of 'app.a' up to version 7 is kept"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_an_invalid_change_is_refused_with_the_reason(broker: BrokerProcess, args: tuple[str, ...], words: str) -> None:
    assert words in refused(broker, *args)
    assert config(broker, "show")["version"] == 0


def test_a_change_that_may_delete_messages_asks_for_confirmation_with_its_effect(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    for args in (("set", "broker.retention_s", "1s"), ("unset", "broker.retention_s@one")):
        text = asked("config", *args, *where)
        assert "broker.retention_s is 7d now. Messages that every group has read and that are older go for good" in text
    assert config(broker, "show")["version"] == 0
    said("config", "set", "broker.retention_s", "8d", *where, answer="y\n")
    assert "go for good" in asked("config", "rollback", "broker.retention_s", "1", *where)
    said("config", "set", "broker.log_level", "info", *where)  # which deletes nothing


def test_two_operators_do_not_overwrite_each_other(broker: BrokerProcess) -> None:
    first = config(broker, "set", "app.a", "1", "--version", "0")
    told = refused(broker, "set", "app.a", "2", "--version", "0")
    assert f"app.a is at version {first['version']}, not 0" in told
    config(broker, "set", "app.a", "2", "--version", str(first["version"]))


def test_history_shows_who_made_each_change_and_a_rollback_is_a_change(broker: BrokerProcess) -> None:
    first = config(broker, "set", "app.a", "1")
    config(broker, "set", "app.b", "x")
    config(broker, "set", "app.a", "2")
    config(broker, "unset", "app.a")
    config(broker, "rollback", "app.a", str(first["version"]), "--yes")
    changes = config(broker, "history", "app.a")["changes"]
    assert [each["value"] for each in changes] == ["1", None, "2", "1"]
    assert all("@" in each["changed_by"] and each["changed_at"] for each in changes)
    until(lambda: [each["value"] for each in config(broker, "show", "app.a")["at_run_time"]] == ["1"])
    assert "setting app.a is '2' since version 3, by " in broker.log.read_text()


async def changing(settings: RunTimeSettings, name: str, value: str | None) -> SettingChange:
    return await settings.change(name, value, expected=None, changed_by="ann")


async def test_an_unset_or_rollback_that_leaves_a_contradiction_is_refused(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        settings = settings_in(pool, notify_url)
        unset = [await changing(settings, "broker.retention_max_s", value) for value in ("60d", None)][-1]
        await changing(settings, "broker.retention_max_s", "60d")
        await changing(settings, "broker.retention_s", "40d")
        with pytest.raises(MisuseError, match=r"retention_max_s=2592000\.0 is shorter than"):
            await changing(settings, "broker.retention_max_s", None)
        with pytest.raises(MisuseError, match=r"retention_max_s=2592000\.0 is shorter than"):
            await settings.roll_back("broker.retention_max_s", unset.version, expected=None, changed_by="ann")
        await changing(settings, "broker.retention_s", None)
        await changing(settings, "broker.retention_max_s", None)


async def test_changes_at_two_brokers_do_not_contradict_each_other(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        here, there = settings_in(pool, notify_url), settings_in(pool, notify_url)
        await changing(here, "broker.retention_s", "20d")
        with pytest.raises(MisuseError, match="settings of all brokers would contradict each other"):
            await changing(there, "broker.retention_max_s", "10d")  # does not know of the other one yet


async def test_the_settings_of_one_broker_are_checked_with_those_of_all(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        settings = settings_in(pool, notify_url)
        with pytest.raises(MisuseError, match="settings of b would contradict each other"):
            await changing(settings, "broker.retention_s@b", "31d")
        await changing(settings, "broker.retention_s@b", "20d")
        with pytest.raises(MisuseError, match="settings of b would contradict each other"):
            await changing(settings, "broker.retention_max_s", "10d")
        await changing(settings, "broker.retention_s", "20d")


async def test_a_contradiction_with_options_of_one_broker_does_not_block_other_changes(
    notify_url: str,
) -> None:
    async with open_pool(notify_url) as pool:
        strict = settings_in(pool, notify_url, retention_s=86_400.0, retention_max_s=86_400.0)
        await SettingStore(pool).change("broker.retention_s", "2d", expected=None, changed_by="ann")
        await changing(strict, "broker.topic_queues", "9")
        await changing(strict, "broker.retention_s", None)


async def test_a_removed_setting_can_be_unset(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        settings = settings_in(pool, notify_url)
        await SettingStore(pool).change("broker.of_last_year", "1", expected=None, changed_by="ann")
        assert (await changing(settings, "broker.of_last_year", None)).value is None
        with pytest.raises(MisuseError, match="is not a setting"):
            await changing(settings, "broker.of_last_year", None)


def test_every_live_number_has_bounds() -> None:
    numbers = {
        name
        for name, each in LIVE.items()
        if each.kind in {SettingKind.DURATION, SettingKind.COUNT, SettingKind.SIZE, SettingKind.NUMBER}
    }
    assert numbers
    assert {name for name in numbers if LIVE[name].least is None or LIVE[name].most is None} == set()


# ---- keeping up


class HeldStore(SettingStore):
    """A store whose next read returns when the test allows it."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.has_read, self.may_return = asyncio.Event(), asyncio.Event()

    async def changed_since(self, version: int) -> Sequence[SettingChange]:
        found = await super().changed_since(version)
        self.has_read.set()
        await self.may_return.wait()
        return found


async def test_a_refresh_during_a_database_restore_unsets_nothing(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store, seen = HeldStore(pool), list[BrokerConfig]()
        settings = RunTimeSettings(GivenSettings(BrokerConfig(storage=notify_url)), store, store)
        settings.on_change(seen.append)
        await store.change("broker.topic_queues", "9", expected=None, changed_by="ann")
        store.may_return.set()
        await settings.refresh_once()
        store.has_read.clear()
        store.may_return.clear()
        looking = asyncio.create_task(settings.refresh_once())
        await store.has_read.wait()
        settings.forget_settings("a restored backup")
        store.may_return.set()
        await looking
        assert [each.topic_queues for each in seen] == [9]
        await settings.refresh_once()
        await settings.changed_from(0, 0)
        assert [row.value for row in settings.stored()] == ["9"]


async def test_a_broker_with_an_older_version_than_its_client_refreshes_before_answering(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        here, there = settings_in(pool, notify_url), settings_in(pool, notify_url)
        await there.refresh_once()
        changed = await changing(here, "app.a", "1")
        await there.changed_from(changed.version, 0)
        assert [row.value for row in there.stored()] == ["1"]


async def test_the_history_of_a_setting_expires_after_it_was_unset(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store = SettingStore(pool)
        for name, value in (("app.gone", "1"), ("app.gone", None), ("app.kept", "1"), ("app.late", "1")):
            await store.change(name, value, expected=None, changed_by="ann")
        async with pool.connection() as conn:
            await conn.execute("update txmsg.setting_change set changed_at = now() - interval '91 days'")
        changed = await store.change("app.late", None, expected=None, changed_by="ann")
        assert changed.version == 5
        assert await store.history("app.gone") == []
        assert [len(await store.history(name)) for name in ("app.kept", "app.late")] == [1, 2]


async def test_a_broker_finds_changes_without_notices_and_after_a_restore(
    notify_url: str,
) -> None:
    async with open_pool(notify_url) as pool:
        store, seen = SettingStore(pool), list[BrokerConfig]()
        given = BrokerConfig(storage=notify_url)
        settings = RunTimeSettings(GivenSettings(given), store, store)
        settings.on_change(seen.append)
        await settings.refresh_once()
        assert seen == []
        await store.change("broker.topic_queues", "9", expected=None, changed_by="ann")
        await settings.refresh_once()
        assert [each.topic_queues for each in seen] == [9]

        async with pool.connection() as conn:
            await conn.execute("delete from txmsg.setting_change")
        settings.forget_settings("a restored backup")
        await settings.refresh_once()
        assert [each.topic_queues for each in seen] == [9, given.topic_queues]


async def test_a_broker_keeps_its_settings_if_run_time_settings_contradict_them(
    notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pool(notify_url) as pool:
        store, seen = SettingStore(pool), list[BrokerConfig]()
        strict = BrokerConfig(storage=notify_url, retention_s=86_400.0, retention_max_s=86_400.0)
        settings = RunTimeSettings(GivenSettings(strict), store, store)
        settings.on_change(seen.append)
        await store.change("broker.retention_s", "2d", expected=None, changed_by="ann")
        await settings.refresh_once()
        assert seen == []
        assert UsedSetting(name="broker.retention_s", value="1d", source="default") in settings.used()
        assert "the broker keeps those it has: retention_max_s=86400.0 is shorter" in caplog.text


async def test_the_history_keeps_the_last_changes_of_every_setting(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store = SettingStore(pool)
        await store.change("app.b", "kept", expected=None, changed_by="ann")
        for n in range(105):
            await store.change("app.a", str(n), expected=None, changed_by="ann")
        assert [row.value for row in await store.history("app.a")] == [str(n) for n in range(104, 4, -1)]
        assert [row.value for row in await store.changed_since(0)] == ["kept", "104"]


async def test_a_watcher_is_woken_by_a_change_and_by_the_stop(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store = SettingStore(pool)
        settings = RunTimeSettings(GivenSettings(BrokerConfig(storage=notify_url)), store, store)
        watching = asyncio.create_task(settings.changed_from(0, 60))
        await store.change("app.a", "1", expected=None, changed_by="ann")
        await settings.refresh_once()
        await watching
        assert [row.name for row in settings.stored(["app."])] == ["app.a"]
        watching = asyncio.create_task(settings.changed_from(settings.version, 60))
        settings.close()
        with pytest.raises(BrokerUnavailable, match="is stopping: ask another broker"):
            await watching
        with pytest.raises(BrokerUnavailable, match="is stopping"):  # nor does it poll in a loop
            await settings.changed_from(settings.version, 60)


async def test_a_watcher_gets_no_empty_settings_during_a_database_restore(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store = SettingStore(pool)
        settings = RunTimeSettings(GivenSettings(BrokerConfig(storage=notify_url)), store, store)
        await settings.refresh_once()
        watching = asyncio.create_task(settings.changed_from(settings.version, 0.01))
        await asyncio.sleep(0)
        settings.forget_settings("a restored backup")
        with pytest.raises(BrokerUnavailable, match="could not read the settings yet"):
            await watching


async def test_an_invalid_name_is_refused_before_the_database_is_queried(notify_url: str) -> None:
    async with open_pool(notify_url) as pool:
        store = SettingStore(pool)
        settings = RunTimeSettings(GivenSettings(BrokerConfig(storage=notify_url)), store, store)
        for name in ("", "app", "app.a b", "app.a@", "x" * 400):
            with pytest.raises(MisuseError):
                await settings.change(name, "1", expected=None, changed_by="ann")
        with pytest.raises(MisuseError, match="changed_by="):
            await settings.change("app.a", "1", expected=None, changed_by="")
        assert await store.version() == 0
