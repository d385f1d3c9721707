"""The loops of alerts: evaluate the rules, write changes, and deliver notifications.

Each broker evaluates the rules that concern it alone. Those that concern the database are evaluated by one broker at a
time: the one that claims the round. Changes are written in one transaction with the notifications that they cause, so a
broker that dies leaves either both or none, and any broker delivers them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from txmsg.administration.alerts import ActiveAlert, AlertState
from txmsg.broker.alerts import observing
from txmsg.broker.alerts.alerts_config import built_in_rules
from txmsg.broker.alerts.file import NO_FILE, Receiver, SqlRule, read_alert_file
from txmsg.broker.alerts.receivers import (
    ATTEMPT_S_MAX,
    ATTEMPTS,
    ERROR_LENGTH_MAX,
    PAUSE_S_MAX,
    Messenger,
    ReceiverFailed,
)
from txmsg.broker.alerts.states import ActiveRule, AlertChanges, fits, is_due, looked
from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store import alerts as store
from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.checks.brokers import RULE_FAILED
from txmsg.checks.catalogue import BUILT_IN
from txmsg.checks.check import Check, Severity
from txmsg.checks.conditions import History, Labels, holding, samples_of, scope_of
from txmsg.metrics.catalogue import CATALOGUE, Scope
from txmsg.metrics.figures import Figures
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

ALERTS_PER_NOTIFICATION: Final = 100
"""Maximum number of alerts in a notification; further ones are counted."""
TEST_S_MAX: Final = 5.0
"""Maximum seconds of a test: less than a command waits."""
_FIGURES_AGE_S_MAX: Final = 600.0
"""Age in seconds from which figures of the database are not used."""
_READ: Final = "txmsg_brokers_dead"
"""A metric that has a series as soon as the figures of the database were read."""
_ROUND_SHARE: Final = 0.9
"""Part of the interval after which a broker claims the next round: the broker that has evaluated last comes first
again, unless it is late."""
_SQL_S_MAX: Final = store.ROUND_S_MAX / 2
"""Seconds in which the statements of all rules must answer, so that the round is still this broker's."""
_SQL_AT_ONCE: Final = 8
_DELIVER_S: Final = 5.0
"""Seconds between polls for notifications that other brokers have left."""
_LEASE_S: Final = ATTEMPTS * ATTEMPT_S_MAX + PAUSE_S_MAX + 10.0
"""Seconds for which a claimed notification is this broker's to deliver."""
_AGAIN_S: Final = (10.0, 30.0, 60.0, 300.0)
"""Seconds until a notification is retried, after each attempt."""
AGAIN_S_MAX: Final = max(_AGAIN_S)


def _rule_of(rule: Check | SqlRule) -> ActiveRule:
    return ActiveRule(
        name=rule.alert if isinstance(rule, Check) else rule.name,
        severity=rule.severity,
        for_s=rule.for_s,
        summary=rule.summary,
        action=rule.action,
    )


class Alerting:
    """Evaluates rules and notifies receivers.

    read: returns the metrics of this broker, with those of the database. has_joined: returns True if it is among the
    live brokers; the others end the alerts of a broker that is not.
    """

    def __init__(
        self,
        config: BrokerConfig,
        pool: Pool,
        read: Callable[[], Awaitable[Figures]],
        *,
        has_joined: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._pool = pool
        self._read = read
        self._has_joined = has_joined
        file = read_alert_file(Path(config.alerts.file)) if config.alerts.file else NO_FILE
        self._sql_rules = file.rules
        self.messengers = {name: Messenger(receiver) for name, receiver in file.receivers.items()}
        # For all rules: one that is off now may be switched on at run time.
        self._history = History(check.condition for check in BUILT_IN.values())
        self._deliver_soon = {name: asyncio.Event() for name in self.messengers}
        self._troubles: dict[str, str] = {}
        self._cut: set[str] = set()

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next round on."""
        self._config = config

    async def run(self) -> None:
        """Evaluate rules and deliver notifications until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(repeat("evaluating alerts", self.look_once, self._config.alerts.interval_s))
                for name, soon in self._deliver_soon.items():
                    step = _ReceiverDelivery(self, name).step
                    tasks.create_task(repeat(f"telling receiver {name} of alerts", step, _DELIVER_S, soon=soon))
        finally:
            for messenger in self.messengers.values():
                messenger.close()

    # ---- looking

    async def look_once(self) -> None:
        """Evaluate the rules of this broker once, and those of the database if it is its turn."""
        if not self._has_joined():
            return
        config = self._config.alerts
        samples = samples_of(await self._read(), instance=self._config.broker_id)
        self._history.add(time.monotonic(), samples)
        age_s = max(samples["txmsg_database_figures_age_seconds"].values())
        if age_s > _FIGURES_AGE_S_MAX or not samples[_READ]:
            # Old figures are left out instead of reported as 0: a rule without samples keeps its state.
            samples = {name: of for name, of in samples.items() if CATALOGUE[name].scope is not Scope.DATABASE}
        by_scope: dict[Scope | None, list[Check]] = {}
        for check in built_in_rules(config):
            by_scope.setdefault(scope_of(check.condition), []).append(check)
        await self._evaluate_checks(self._config.broker_id, by_scope.get(Scope.PROCESS, ()), samples)
        async with session(self._pool) as conn:
            number = await store.claim_round(conn, self._config.broker_id, config.interval_s * _ROUND_SHARE)
            if number is None:
                return
            seen_of_mirrors = await observing.mirrors(conn)
        of_database = by_scope.get(Scope.DATABASE, ())
        await self._evaluate_checks(store.DATABASE, of_database, {**samples, **seen_of_mirrors}, number)

    async def _evaluate_checks(
        self,
        source: str,
        checks: Sequence[Check],
        samples: Mapping[str, Mapping[Labels, float]],
        number: int | None = None,
    ) -> None:
        rules = {check.alert: _rule_of(check) for check in checks}
        observed: dict[str, Mapping[Labels, float] | None] = {
            check.alert: holding(check.condition, samples, self._history, self._config.alerts) for check in checks
        }
        if source == store.DATABASE:
            rules |= {rule.name: _rule_of(rule) for rule in self._sql_rules}
            rules[RULE_FAILED.alert] = _rule_of(RULE_FAILED)
            observed |= await self._observe_sql()
        async with session(self._pool) as conn, conn.transaction():
            if number is not None and not await store.finish_round(conn, number):
                return  # this broker was paused, and another one has evaluated the rules since
            sources = [source] if number is None else [source, *await store.sources_left(conn)]
            before = await store.active(conn, sources)
            look = looked(
                before,
                source,
                rules,
                observed,
                now=await store.clock(conn),
                keep_firing_s=self._config.alerts.keep_firing_s,
                job=conn.info.dbname,
            )
            changed = await self._write(conn, look)
            if number is not None:
                await store.forget_old(conn)
        self._tell_log({alert.id: alert for alert in before}, changed)

    async def _observe_sql(self) -> dict[str, Mapping[Labels, float] | None]:
        """Return the results of the statements of custom rules, a few at a time."""
        deadline = asyncio.get_running_loop().time() + _SQL_S_MAX
        at_once = asyncio.Semaphore(_SQL_AT_ONCE)
        found: dict[str, Mapping[Labels, float] | None] = {}
        failing: dict[Labels, float] = {}

        async def observe(rule: SqlRule) -> None:
            found[rule.name] = None
            more = 0
            try:
                async with asyncio.timeout_at(deadline), at_once:
                    found[rule.name], more = observing.beyond(rule, await observing.rows_of(rule))
                trouble = ""
            except observing.RuleFailed as exc:
                trouble = str(exc)
            except TimeoutError:
                trouble = "its statement did not answer in the time of a look"
            if trouble:
                failing[frozenset({("failing", rule.name)})] = 1.0
                if trouble != self._troubles.get(rule.name):  # once, not at each round
                    _log.warning(
                        "alert.rule_failed",
                        "alert rule %(rule)s says nothing: %(error)s",
                        rule=rule.name,
                        error=trouble,
                    )
            self._troubles[rule.name] = trouble
            if trouble:
                return
            if more and rule.name not in self._cut:
                _log.warning(
                    "alert.rule_cut",
                    "alert rule %(rule)s holds for %(more)d more rows than the %(most)d that raise alerts: aggregate "
                    "them in its statement",
                    rule=rule.name,
                    more=more,
                    most=observing.ALERTS_MAX,
                )
            (self._cut.add if more else self._cut.discard)(rule.name)

        async with asyncio.TaskGroup() as tasks:
            for rule in self._sql_rules:
                tasks.create_task(observe(rule))
        return {**found, RULE_FAILED.alert: failing}

    async def _write(self, conn: Connection, look: AlertChanges) -> list[ActiveAlert]:
        """Store alerts, and the notifications that they cause."""
        silences = await store.silences(conn)
        now = await store.clock(conn)
        due, alerts = [], []
        for alert in look.alerts:
            is_silenced = any(fits(silence.matchers, alert.rule, alert.labels) for silence in silences)
            is_told = any(_takes(messenger.receiver, alert) for messenger in self.messengers.values()) and is_due(
                alert, is_silenced=is_silenced, now=now, repeat_s=self._config.alerts.repeat_s
            )
            alerts.append(replace(alert, notified_at=now) if is_told else alert)
            due.append(is_told)
        # New alerts get their ids here, which the notifications carry as fingerprints.
        stored = await store.write(conn, alerts, look.forgotten)
        to_tell = [alert for alert, is_told in zip(stored, due, strict=True) if is_told]
        for name, messenger in self.messengers.items():
            taken = [alert for alert in to_tell if _takes(messenger.receiver, alert)]
            if taken:
                await store.add_notification(conn, name, content_of(name, conn.info.dbname, taken))
                self._deliver_soon[name].set()
        return stored

    def _tell_log(self, before: Mapping[int, ActiveAlert], after: Iterable[ActiveAlert]) -> None:
        for alert in after:
            was = before.get(alert.id)
            if alert.state is AlertState.FIRING and (was is None or was.state is not AlertState.FIRING):
                _log.warning("alert.fires", "alert %(rule)s fires: %(summary)s", rule=alert.rule, summary=alert.summary)
            elif alert.state is AlertState.RESOLVED:
                _log.info(
                    "alert.resolved", "alert %(rule)s is resolved: %(summary)s", rule=alert.rule, summary=alert.summary
                )

    # ---- telling

    async def deliver_once(self, name: str) -> bool:
        """Deliver the next notification of a receiver, if one is due. Returns True if it was delivered."""
        # Claimed in a transaction of its own: no connection is held while the receiver is waited for.
        async with session(self._pool) as conn:
            notification = await store.claim_notification(conn, name, _LEASE_S)
        if notification is None:
            return False
        try:
            await self.messengers[name].notify_receiver(notification.id, notification.content)
        except ReceiverFailed as exc:
            again_s = _AGAIN_S[min(notification.attempts, len(_AGAIN_S)) - 1]
            _log.warning(
                "alert.not_delivered",
                "receiver %(receiver)s could not be notified of alerts, again in %(again_s)g s: %(error)s",
                receiver=name,
                again_s=again_s,
                error=exc,
            )
            async with session(self._pool) as conn:
                await store.failed(conn, notification.id, str(exc)[:ERROR_LENGTH_MAX], again_s)
            return False
        async with session(self._pool) as conn:
            await store.delivered(conn, notification.id)
        return True

    async def test(self) -> dict[str, str]:
        """Send a test alert to each receiver of this broker. Returns the error by name; "" if it was delivered."""
        now = datetime.now().astimezone()
        alert = ActiveAlert(
            source=self._config.broker_id,
            rule="TxmsgTest",
            labels={},
            severity=Severity.WARNING,
            summary=f"a test of notifications, sent by broker {self._config.broker_id}",
            action="Nothing: this is a test.",
            state=AlertState.FIRING,
            value=1.0,
            since=now,
            seen_at=now,
            fired_at=now,
        )

        async def told_what(name: str, messenger: Messenger) -> str:
            try:
                async with asyncio.timeout(TEST_S_MAX):
                    await messenger.notify_receiver(0, content_of(name, "txmsg", [alert]), attempts=1)
            except ReceiverFailed as exc:
                return str(exc)
            except TimeoutError:
                return f"no answer within {TEST_S_MAX:g} s"
            return ""

        outcomes = await asyncio.gather(*(told_what(*each) for each in self.messengers.items()))
        return dict(zip(self.messengers, outcomes, strict=True))


class _ReceiverDelivery:
    """Delivers the waiting notifications of one receiver."""

    def __init__(self, alerting: Alerting, name: str) -> None:
        self._alerting = alerting
        self._name = name

    async def step(self) -> None:
        while await self._alerting.deliver_once(self._name):
            pass


def _takes(receiver: Receiver, alert: ActiveAlert) -> bool:
    return receiver.severity is Severity.WARNING or alert.severity is Severity.CRITICAL


def content_of(receiver: str, job: str, alerts: Sequence[ActiveAlert]) -> dict[str, Any]:
    """Return a notification, in the form of Alertmanager's webhooks, version 4."""
    is_firing = any(alert.state is AlertState.FIRING for alert in alerts)
    return {
        "version": "4",
        "receiver": receiver,
        "status": "firing" if is_firing else "resolved",
        "groupKey": f"txmsg:{job}",
        "groupLabels": {"job": job},
        "commonLabels": {"job": job},
        "commonAnnotations": {},
        "externalURL": "",
        "truncatedAlerts": max(0, len(alerts) - ALERTS_PER_NOTIFICATION),
        "alerts": [_content(alert, job) for alert in alerts[:ALERTS_PER_NOTIFICATION]],
    }


def _content(alert: ActiveAlert, job: str) -> dict[str, Any]:
    assert alert.fired_at is not None
    return {
        "status": alert.state.value,
        "labels": {**alert.labels, "alertname": alert.rule, "severity": alert.severity, "job": job},
        "annotations": {"summary": alert.summary, "action": alert.action},
        "startsAt": alert.fired_at.isoformat(),
        # Alertmanager's own word for "not yet".
        "endsAt": alert.resolved_at.isoformat() if alert.resolved_at else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": f"{alert.id:016x}",
    }
