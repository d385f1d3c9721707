"""Rule evaluation and notifications of brokers on a real database, with metrics and times set by tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.alerts.receiving import Webhook, receiving
from txmsg.administration.alerts import ActiveAlert, AlertState, NewSilence
from txmsg.broker.alerts import alerting
from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.alerts.alerts_config import AlertsConfig
from txmsg.broker.cluster import Registry
from txmsg.broker.config import BrokerConfig
from txmsg.broker.store import alerts as store
from txmsg.broker.store import figures
from txmsg.broker.store.connect import Pool, open_pool, session
from txmsg.checks.catalogue import BUILT_IN
from txmsg.checks.check import Severity
from txmsg.checks.conditions import scope_of
from txmsg.metrics.catalogue import GROUP, TOPIC, ExportingProcess, Scope
from txmsg.metrics.figures import Figures


class World:
    """Two brokers that evaluate rules on one database with metrics set by the test."""

    def __init__(self, url: str, pool: Pool, file: Path) -> None:
        self.url, self.pool, self.file = url, pool, file
        self.dead, self.paused, self.dropped, self.age_s = 0, 0, 0, 1.0
        self.has_read = True
        self.a, self.b = self.broker("a"), self.broker("b")

    def broker(self, name: str, **settings: Any) -> Alerting:
        alerts = AlertsConfig(file=str(self.file), interval_s=1.0, keep_firing_s=0.0, **settings)
        return Alerting(BrokerConfig(storage=self.url, broker_id=name, alerts=alerts), self.pool, self.read)

    async def read(self) -> Figures:
        figures = Figures(ExportingProcess.BROKER)
        figures.put("txmsg_database_figures_age_seconds", self.age_s)
        if self.has_read:
            figures.put("txmsg_brokers_dead", 0)
            figures.put("txmsg_group_dead_letters", self.dead, **{GROUP: "shop", TOPIC: "t"})
        figures.put("txmsg_delivery_paused_groups", self.paused)
        figures.put("txmsg_unread_dropped_messages_total", self.dropped)
        return figures

    def later(self, minutes: float) -> None:
        """Move all times of alerts back."""
        self.execute(
            """
            update txmsg.alert set since = since - %(span)s, seen_at = seen_at - %(span)s,
                                   fired_at = fired_at - %(span)s, notified_at = notified_at - %(span)s
            """,
            minutes,
        )
        self.execute("update txmsg.alert_notification set next_try_at = next_try_at - %(span)s", minutes)
        self.execute("update txmsg.alert_silence set until = until - %(span)s", minutes)

    def join(self, name: str, address: str = "h:1") -> None:
        """Register a broker as live."""
        self.execute(
            "insert into txmsg.broker (id, address, release, schema_revision, expires_at) "
            f"values ('{name}', '{address}', '1', '1', now() + interval '1 hour')"
        )

    def execute(self, statement: str, minutes: float = 0.0) -> None:
        with psycopg.connect(self.url, connect_timeout=10) as connection:
            connection.execute(statement.encode(), {"span": timedelta(minutes=minutes)})

    async def states(self) -> list[tuple[str, str]]:
        async with session(self.pool) as conn:
            alerts = await store.listed(conn) + await store.history(conn, 10)
        return [(alert.rule, alert.state.value) for alert in alerts]

    async def fire(self) -> None:
        """Create a dead letter that both brokers have seen for longer than the rule requires."""
        self.dead = 1
        await self.a.look_once()
        self.later(6)
        for broker in (self.a, self.b):
            await broker.look_once()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with receiving() as found:
        yield found


@pytest.fixture
async def world(
    notify_url: str, webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(alerting, "_ROUND_SHARE", 0.0)  # the next round can follow at once
    file = tmp_path / "alerts.toml"
    file.write_text(f'[receivers.oncall]\nwebhook = "{webhook.url}"\n')
    pool = open_pool(notify_url)
    await pool.open()
    found = World(notify_url, pool, file)
    yield found
    for broker in (found.a, found.b):
        broker.messengers["oncall"].close()
    await pool.close()


async def deliver(broker: Alerting) -> None:
    while await broker.deliver_once("oncall"):
        pass


async def test_two_brokers_send_one_notification_when_an_alert_fires_and_one_when_it_resolves(
    world: World, webhook: Webhook
) -> None:
    world.dead = 1
    for broker in (world.a, world.b):
        await broker.look_once()
    assert await world.states() == [("TxmsgDeadLetters", "pending")]
    world.later(6)
    for broker in (world.a, world.b, world.a):
        await broker.look_once()
        await deliver(broker)
    assert webhook.told() == [("firing", "TxmsgDeadLetters")]
    world.dead = 0
    for broker in (world.b, world.a):
        await broker.look_once()
    for broker in (world.a, world.b):
        await deliver(broker)
    assert webhook.told() == [("firing", "TxmsgDeadLetters"), ("resolved", "TxmsgDeadLetters")]
    assert await world.states() == [("TxmsgDeadLetters", "resolved")]


async def test_notification_has_the_alertmanager_format(world: World, webhook: Webhook) -> None:
    await world.fire()
    await deliver(world.b)
    [content] = webhook.received
    [alert] = content["alerts"]
    assert (content["version"], content["status"], content["receiver"]) == ("4", "firing", "oncall")
    assert alert["labels"][GROUP] == "shop"
    assert alert["annotations"]["summary"] == "group shop in topic t has 1 dead letters"
    assert alert["endsAt"] == "0001-01-01T00:00:00Z"


async def test_notification_is_repeated_after_the_repeat_interval(world: World, webhook: Webhook) -> None:
    await world.fire()
    await deliver(world.a)
    for minutes, count in ((239, 1), (2, 2), (100, 2)):
        world.later(minutes)
        await world.b.look_once()
        await deliver(world.b)
        assert len(webhook.received) == count


async def test_database_alerts_keep_their_state_while_its_metrics_are_stale(world: World) -> None:
    await world.fire()
    world.dead, world.age_s = 0, 601.0
    await world.a.look_once()
    assert await world.states() == [("TxmsgDeadLetters", "firing")]
    world.age_s, world.has_read = 1.0, False
    await world.a.look_once()
    assert await world.states() == [("TxmsgDeadLetters", "firing")]


def of_scope(scope: Scope) -> str:
    """Return the built-in rules evaluated per broker, or for the database, as `off` names them."""
    return " ".join(name for name, check in BUILT_IN.items() if scope_of(check.condition) is scope)


async def test_database_rules_are_evaluated_when_all_broker_rules_are_off(world: World) -> None:
    world.a = world.broker("a", off=of_scope(Scope.PROCESS))
    world.dead, world.paused = 1, 3
    await world.a.look_once()
    assert await world.states() == [("TxmsgDeadLetters", "pending")]


async def test_custom_rules_are_evaluated_when_all_database_rules_are_off(world: World) -> None:
    world.file.write_text(
        f'{world.file.read_text()}[rules.Own]\nsql = "select 1"\ndatabase = "{world.url}"\nabove = 0\nsummary = "s"\n'
    )
    world.a = world.broker("a", off=of_scope(Scope.DATABASE))
    world.dead = 1
    await world.a.look_once()
    assert await world.states() == [("Own", "pending")]


async def test_a_rule_on_a_counter_that_was_off_at_the_start_can_be_switched_on(world: World) -> None:
    config = BrokerConfig(storage=world.url, broker_id="a", alerts=AlertsConfig())
    off = replace(config, alerts=replace(config.alerts, off="TxmsgServerErrors TxmsgDroppedUnread"))
    broker = Alerting(off, world.pool, world.read)
    await broker.look_once()
    broker.apply_settings(config)
    world.join("a")
    world.dropped = 2
    await broker.look_once()
    assert await world.states() == [("TxmsgDroppedUnread", "firing")]


async def test_broker_paused_during_evaluation_writes_nothing(world: World) -> None:
    await world.fire()
    world.dead = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def observe_slowly() -> dict[str, Any]:
        begun.set()
        await go_on.wait()
        return {}

    world.a._observe_sql = observe_slowly  # type: ignore[method-assign]
    paused = asyncio.create_task(world.a.look_once())
    await begun.wait()
    world.dead = 1
    await world.b.look_once()
    assert await world.states() == [("TxmsgDeadLetters", "firing")]
    world.execute("update txmsg.alert_round set begun_at = begun_at - interval '61 seconds'")
    await world.b.look_once()
    go_on.set()
    await paused
    assert await world.states() == [("TxmsgDeadLetters", "firing")]


async def test_evaluation_round_has_one_broker_until_it_finishes_or_times_out(world: World) -> None:
    async with session(world.pool) as conn:
        first = await store.claim_round(conn, "a", 0.0)
        assert first is not None
        assert await store.claim_round(conn, "b", 0.0) is None
        assert await store.finish_round(conn, first)
        second = await store.claim_round(conn, "b", 0.0)
        assert second is not None
        assert not await store.finish_round(conn, first)
        await conn.execute("update txmsg.alert_round set begun_at = begun_at - interval '61 seconds'")
        assert await store.claim_round(conn, "a", 120.0) is None
        assert await store.claim_round(conn, "a", 30.0) == second + 1


async def test_alert_about_a_broker_is_sent_per_broker_and_resolves_when_the_broker_dies(
    world: World, webhook: Webhook
) -> None:
    for name in ("a", "b"):
        world.join(name)
    world.paused = 3
    for broker in (world.a, world.b):
        await broker.look_once()
    world.later(6)
    for broker in (world.a, world.b):
        await broker.look_once()
    await deliver(world.a)
    instances = {alert["labels"]["instance"] for content in webhook.received for alert in content["alerts"]}
    assert instances == {"a", "b"}
    world.execute("update txmsg.broker set expires_at = now() - interval '1 second' where id = 'a'")
    await world.b.look_once()
    assert sorted(state for _, state in await world.states()) == ["firing", "resolved"]


async def test_broker_can_have_any_name(world: World) -> None:
    world.a = world.broker("database")
    world.join("database")
    world.dead, world.paused = 1, 3
    for _ in range(2):
        await world.a.look_once()
    assert sorted(await world.states()) == [("TxmsgDeadLetters", "pending"), ("TxmsgGroupPaused", "pending")]


async def test_dead_broker_is_reported_missing_until_it_is_replaced(world: World) -> None:
    async def missing() -> int:
        async with session(world.pool) as conn:
            return await figures.dead_brokers(conn, come_back_s=0)

    for name in ("a", "b", "c"):
        world.join(name, f"{name}:1")
    assert await missing() == 0
    world.execute("update txmsg.broker set state = 'dead', expires_at = now() - interval '9 s' where id <> 'c'")
    world.join("b-crashed-again", "b:1")
    world.execute("update txmsg.broker set expires_at = now() - interval '1 s' where id = 'b-crashed-again'")
    world.execute("update txmsg.broker set started_at = now() - interval '1 day' where id = 'c'")
    assert await missing() == 2
    world.join("a-again", "a:1")
    assert await missing() == 1
    world.join("d", "elsewhere:1")
    assert await missing() == 0


async def test_forgotten_broker_is_not_reported_missing(world: World) -> None:
    for name in ("a", "b"):
        world.join(name, f"{name}:1")
    world.execute("update txmsg.broker set expires_at = now() - interval '1 s' where id = 'a'")
    world.execute("update txmsg.broker set started_at = now() - interval '1 day' where id = 'b'")
    async with session(world.pool) as conn:
        assert await figures.dead_brokers(conn, come_back_s=0) == 1
    await Registry(world.pool).forget_broker("a")
    async with session(world.pool) as conn:
        assert await figures.dead_brokers(conn, come_back_s=0) == 0


async def test_brokers_get_time_to_return_after_a_restore_before_they_are_reported_dead(
    world: World,
) -> None:
    for name in ("a", "b", "c"):
        world.join(name, f"{name}:1")
    world.execute(
        "update txmsg.broker set state = 'dead', expires_at = pg_postmaster_start_time() - interval '1 s' "
        "where id <> 'c'"
    )
    world.execute("update txmsg.broker set started_at = now() - interval '1 day' where id = 'c'")
    async with session(world.pool) as conn:
        assert await figures.dead_brokers(conn, come_back_s=1e6) == 0
        assert await figures.dead_brokers(conn, come_back_s=0) == 2
        await conn.execute("update txmsg.broker set expires_at = now() where id = 'a'")  # died since
        assert await figures.dead_brokers(conn, come_back_s=1e6) == 1


async def test_known_alerts_are_written_in_one_statement(world: World) -> None:
    now = datetime.now(UTC)
    new = [
        ActiveAlert(
            source="a", rule=rule, labels={}, severity=Severity.WARNING, summary=rule, action="",
            state=AlertState.PENDING, value=1, since=now, seen_at=now,
        ) for rule in ("A", "B", "C")
    ]  # fmt: skip
    async with session(world.pool) as conn:
        a, b, c = await store.write(conn, new, [])
    changed = [
        replace(a, value=2.5, summary="more", seen_at=now + timedelta(seconds=1)),
        replace(b, state=AlertState.FIRING, fired_at=now, notified_at=now),
        replace(c, state=AlertState.RESOLVED, fired_at=now, resolved_at=now),
    ]
    async with session(world.pool) as conn, conn.transaction():
        assert await store.write(conn, [changed[0], replace(new[0], rule="D"), *changed[1:]], []) == [
            changed[0],
            replace(new[0], rule="D", id=c.id + 1),
            *changed[1:],
        ]
        cursor = await conn.execute("select count(distinct cmin::text) from txmsg.alert where rule <> 'D'")
        assert await cursor.fetchone() == (1,)
    async with session(world.pool) as conn:
        stored = await store.listed(conn) + await store.history(conn, 10)
    assert sorted((each for each in stored if each.rule != "D"), key=lambda alert: alert.id) == changed


# ---- delivery


async def test_notification_of_a_dead_broker_is_sent_by_another(world: World, webhook: Webhook) -> None:
    await world.fire()
    async with session(world.pool) as conn:
        claimed = await store.claim_notification(conn, "oncall", 30)  # by one that is killed before it sends
    assert claimed is not None
    await deliver(world.b)
    assert webhook.received == []
    world.later(1)
    await deliver(world.b)
    assert webhook.told() == [("firing", "TxmsgDeadLetters")]


async def test_failing_receiver_gets_all_notifications_in_order_after_it_recovers(
    world: World, webhook: Webhook
) -> None:
    await world.fire()
    webhook.status = 503
    await deliver(world.a)
    world.dead = 0
    await world.a.look_once()
    async with session(world.pool) as conn:
        [waiting] = await store.waiting(conn)
    assert (waiting.name, waiting.waiting, waiting.last_error) == ("oncall", 2, "the webhook answered 503")
    webhook.status = 200
    await deliver(world.b)
    assert webhook.received == []
    world.later(1)
    await deliver(world.b)
    assert [status for status, _ in webhook.told()] == ["firing", "resolved"]


async def test_undeliverable_notifications_are_bounded_and_finally_dropped(world: World) -> None:
    async with session(world.pool) as conn:
        for receiver in ("oncall", "gone"):
            await store.add_notification(conn, receiver, {})
        await conn.execute("update txmsg.alert_notification set created_at = now() - interval '25 hours'")
        for _ in range(3):
            await store.add_notification(conn, "oncall", {})
        await conn.execute(
            "insert into txmsg.alert_notification (receiver, content) "
            "select 'gone', '{}' from generate_series(1, %s)", (store.WAITING_MAX + 5,),
        )  # fmt: skip
        await store.forget_old(conn)
        assert [(each.name, each.waiting) for each in await store.waiting(conn)] == [
            ("gone", store.WAITING_MAX),
            ("oncall", 3),
        ]


async def test_test_notification_reports_the_result_of_each_receiver(
    world: World, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await world.a.test() == {"oncall": ""}
    assert webhook.told() == [("firing", "TxmsgTest")]
    webhook.status = 500
    assert await world.a.test() == {"oncall": "the webhook answered 500"}
    monkeypatch.setattr(alerting, "TEST_S_MAX", 0.2)
    webhook.go_on.clear()
    assert await world.a.test() == {"oncall": "no answer within 0.2 s"}


# ---- silences


async def test_silence_suppresses_notifications_until_it_ends(world: World, webhook: Webhook) -> None:
    async with session(world.pool) as conn:
        await store.silence(conn, NewSilence(matchers=[f"{GROUP}=sh*"], for_s=3600.0, reason="maintenance"))
    await world.fire()
    await deliver(world.a)
    assert await world.states() == [("TxmsgDeadLetters", "firing")]
    assert webhook.received == []
    world.later(61)
    await world.a.look_once()
    await deliver(world.a)
    assert webhook.told() == [("firing", "TxmsgDeadLetters")]


async def test_alert_that_fired_unnotified_is_resolved_unnotified(world: World, webhook: Webhook) -> None:
    async with session(world.pool) as conn:
        made = await store.silence(conn, NewSilence(matchers=["rule=*"], for_s=3600.0, reason=""))
    await world.fire()
    world.dead = 0
    async with session(world.pool) as conn:
        assert await store.unsilence(conn, made.id)
        assert not await store.unsilence(conn, made.id)
        assert await store.silences(conn) == []
    await world.a.look_once()
    await deliver(world.a)
    assert webhook.received == []


# ---- receivers by severity


async def test_receiver_of_critical_alerts_gets_no_others(world: World, webhook: Webhook, tmp_path: Path) -> None:
    world.file.write_text(f'[receivers.oncall]\nwebhook = "{webhook.url}"\nseverity = "critical"\n')
    world.a = world.b = world.broker("a")
    await world.fire()
    await deliver(world.a)
    assert webhook.received == []
    assert await world.states() == [("TxmsgDeadLetters", "firing")]
