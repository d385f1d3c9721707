"""Every check of the list is used, fills the fields of its texts, and fires and clears where it is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import txmsg
from tests.console.desk import snapshot_of
from tests.metrics.test_rules import FIRES
from txmsg.administration.alerts import ActiveAlert, AlertState
from txmsg.broker.alerts.alerting import _rule_of
from txmsg.broker.alerts.states import looked
from txmsg.checks import database as of_database
from txmsg.checks.brokers import CUT, NOBODY_DELIVERS
from txmsg.checks.catalogue import BUILT_IN, CHECKS, RULES, findings_in
from txmsg.checks.check import Check
from txmsg.checks.conditions import (
    INSTANCE,
    History,
    Labels,
    LevelCondition,
    RiseCondition,
    ShareCondition,
    holding,
    scope_of,
)
from txmsg.checks.texts import fields_in
from txmsg.checks.thresholds import Thresholds
from txmsg.metrics.catalogue import CATALOGUE, Scope
from txmsg.ops.console.pages import overview
from txmsg.ops.doctor import database
from txmsg.ops.doctor.probe import Probe, shown
from txmsg.settings.catalogue import setting, settings_of

PACKAGE = Path(txmsg.__file__).parent
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for path in PACKAGE.rglob("*.py")
    if path.parent.name != "checks" and "checks" in path.read_text(encoding="utf-8")
}
NAMES = {
    id(each): name
    for module in ("brokers", "messages", "database", "logs")
    for name, each in vars(__import__(f"txmsg.checks.{module}", fromlist=["_"])).items()
    if isinstance(each, Check)
}


# ---- each check is used


def calls_in(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls CHECK.found(...), and those of a CHECK that a function gets as an argument."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "found":
            names = [each.id for each in ast.walk(node.func.value) if isinstance(each, ast.Name)]
            yield from ((name, node) for name in names)


CALLS = [(path.name, name, call) for path, source in SOURCES.items() for name, call in calls_in(source)]


def read(check: Check, name: str, sources: Iterable[str]) -> bool:
    """Return True if metrics show the check to Prometheus, or the code of a probe finds it."""
    return check.condition is not None or any(f"{name}.found(" in source or f", {name}," in source
                                              or f"({name} if " in source or f"_of({name})" in source
                                              or f"else {name})" in source for source in sources)  # fmt: skip


def test_each_check_is_used() -> None:
    assert [check.name for check in CHECKS if not read(check, NAMES[id(check)], SOURCES.values())] == []
    assert len({check.name for check in CHECKS}) == len({check.alert for check in CHECKS}) == len(CHECKS)


def test_unused_check_is_found() -> None:
    planted = replace(CUT, name="planted")
    assert not read(planted, "PLANTED", SOURCES.values())
    assert read(planted, "PLANTED", [*SOURCES.values(), "yield PLANTED.found(left=1)"])


def test_probes_fill_all_fields_of_the_texts() -> None:
    checks = {NAMES[id(check)]: check for check in CHECKS}
    looked_at = 0
    for path, name, call in CALLS:
        if name not in checks:
            continue
        check, looked_at = checks[name], looked_at + 1
        texts = [check.why, check.fix, *([] if call.args else [check.what])]
        given = {keyword.arg for keyword in call.keywords}
        assert {field for text in texts for field in fields_in(text)} <= given, f"{path}: {name}"
    assert looked_at > 50


# ---- each threshold is used


class Asked:
    """Records the thresholds that a condition reads."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> float:
        self.names.add(name)
        return 0.0


def unread(thresholds: type[Thresholds]) -> set[str]:
    """Return settings that no condition reads."""
    asked = Asked()
    for check in RULES:
        if isinstance(check.condition, LevelCondition | ShareCondition) and callable(check.condition.threshold):
            check.condition.threshold(cast("Any", asked))
    return {each.name for each in settings_of(thresholds)} - asked.names


def test_each_threshold_is_used_by_a_condition() -> None:
    assert unread(Thresholds) == set()


def test_unused_threshold_is_found() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Planted(Thresholds):
        planted_s: float = setting(1.0, "Nothing reads this.", least=0)

    assert unread(Planted) == {"planted_s"}


# ---- each check that figures show fires and clears: Prometheus' side is in test_rules.py, with the same values


def samples(check: Check, values: str, history: History) -> dict[str, dict[Labels, float]]:
    """Return the values of FIRES as metrics of one moment; for a counter also those of an earlier moment."""
    *others, last = FIRES[check.alert][0].split(";")
    found: dict[str, dict[Labels, float]] = {}
    for series, points in [*(other.rpartition(" ")[::2] for other in others), (last, values)]:
        name, _, text = series.partition("{")
        labels = {
            label: value.strip('"')
            for label, _, value in (each.partition("=") for each in text[:-1].split(",") if each)
        }
        labels = dict.fromkeys(CATALOGUE[name].labels, "x") | labels
        if CATALOGUE[name].scope is not Scope.DATABASE:
            labels |= {INSTANCE: "a:1"}
        first, _, step = points.partition("x")[0].partition("+")
        found[name] = {frozenset(labels.items()): float(first) + 60 * float(step or 0)}
        history.add(0, {name: {frozenset(labels.items()): float(first)}})
    history.add(60, found)
    return found


def held(check: Check, values: str) -> dict[Labels, float]:
    history = History([check.condition])
    return holding(check.condition, samples(check, values, history), history) or {}


@pytest.mark.parametrize("check", BUILT_IN.values(), ids=lambda check: check.name)
def test_an_alert_of_brokers_fires_and_is_resolved(check: Check) -> None:
    _, fires, quiet = FIRES[check.alert]
    now, rules = datetime(2026, 1, 1, tzinfo=UTC), {check.alert: _rule_of(check)}
    alerts: list[ActiveAlert] = []
    states = []
    for after_s, values in ((0, fires), (check.for_s, fires), (check.for_s + 1, quiet)):
        at = now + timedelta(seconds=after_s)
        look = looked(alerts, "b", rules, {check.alert: held(check, values)}, now=at, keep_firing_s=0, job="notify")
        alerts = [replace(each, id=1) for each in look.alerts]
        states.append(alerts[0].state)
    assert states[1:] == [AlertState.FIRING, AlertState.RESOLVED]
    assert not set("{}") & set(alerts[0].summary)


@pytest.mark.parametrize(
    "check",
    [check for check in RULES if isinstance(check.condition, LevelCondition | ShareCondition)],
    ids=lambda check: check.name,
)
def test_doctor_and_overview_find_problems_shown_by_metrics(check: Check) -> None:
    _, fires, quiet = FIRES[check.alert]
    wrong, well = (samples(check, values, History()) for values in (fires, quiet))
    assert [found.check for found in shown(wrong)] == [check]
    [found] = findings_in(wrong)
    assert not set("{}") & set(found.what + found.why + found.fix + found.what_in("zh"))
    assert check not in {found.check for found in shown(well)}
    if scope_of(check.condition) is None:
        return
    for values, expected in ((wrong, [check]), (well, [])):
        series = {
            (name, tuple(dict(labels)[label] for label in CATALOGUE[name].labels)): value
            for name, of in values.items()
            for labels, value in of.items()
        }
        snapshot = replace(snapshot_of({}), series={"a:1": series}, database=series)
        assert [each.finding.check for each in overview.findings(snapshot) if each.finding.check is check] == expected


def test_single_evaluation_does_not_report_counter_rises() -> None:
    for check in (each for each in RULES if isinstance(each.condition, RiseCondition)):
        assert list(findings_in(samples(check, FIRES[check.alert][1], History()))) == []


# ---- probes of the database fire and clear: with rows as statements return them; test_database.py has real ones


class Rows(database.ProbedDatabase):
    """Answers every statement with these rows."""

    found: tuple[object, ...]

    def __init__(self, *rows: object) -> None:
        object.__setattr__(self, "found", rows)

    def rows(self, statement: str, *parameters: object) -> list[Any]:
        is_of_prepared = "pg_prepared_xacts" in statement
        return [each for each in self.found if not is_of_prepared or hasattr(each, "gid")]


def row(**values: object) -> object:
    return SimpleNamespace(**values)


_SLOT = {
    "name": "txmsg_s",
    "active": True,
    "wal_status": "",
    "safe_bytes": None,
    "kept_bytes": 0,
    "is_unlimited": False,
}
_COUNTS = {"used": 9, "own": 1, "others": 1, "brokers": 1, "allowed": 100}
WELL: dict[Probe[database.ProbedDatabase], list[object]] = {
    database.live_broker: [row()],
    database.connections: [row(**_COUNTS)],
    database.replication_slots: [row(**_SLOT)],
    database.transaction_ids: [row(age=5)],
}
"""Results of statements on a healthy database, if not empty."""
WRONG: list[tuple[Check, Probe[database.ProbedDatabase], list[object]]] = [
    (NOBODY_DELIVERS, database.live_broker, []),
    (of_database.FULL_PAGE_WRITES, database.durability, [row(name="full_page_writes")]),
    (of_database.DATA_CHECKSUMS, database.durability, [row(name="data_checksums")]),
    (of_database.AUTOVACUUM, database.autovacuum, [row(name="track_counts")]),
    (of_database.CONNECTIONS, database.connections, [row(**_COUNTS | {"used": 90})]),
    (of_database.CONNECTIONS, database.connections, [row(**_COUNTS | {"brokers": 9})]),
    (of_database.SLOT_LOST, database.replication_slots, [row(**_SLOT | {"wal_status": "lost"})]),
    (of_database.SLOT_IN_DANGER, database.replication_slots, [row(**_SLOT | {"wal_status": "unreserved"})]),
    (of_database.SLOT_IN_DANGER, database.replication_slots, [row(**_SLOT | {"safe_bytes": 1024**3 - 1})]),
    (of_database.SLOT_UNREAD, database.replication_slots, [row(**_SLOT | {"active": False})]),
    (of_database.SLOT_KEEPS_LOG, database.replication_slots, [row(**_SLOT | {"kept_bytes": 10 * 1024**3 + 1})]),
    (of_database.SLOT_UNLIMITED, database.replication_slots, [row(**_SLOT | {"is_unlimited": True})]),
    (of_database.PREPARED_TRANSACTION, database.long_transactions,
     [row(gid="it's", open_s=400.0, pid=1, who="u", state="", all_of_them=1)]),
    (of_database.LONG_TRANSACTION, database.long_transactions,
     [row(pid=1, who="u", state="idle", open_s=400.0, all_of_them=1)]),
    (of_database.INDEX_INVALID, database.invalid_indexes, [row(name="retry_due")]),
    (of_database.DEAD_ROWS, database.dead_rows, [row(name="retry", dead=9, live=1)]),
    (of_database.TRANSACTION_IDS, database.transaction_ids, [row(age=1_000_000_001)]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "probe", "rows"), WRONG, ids=lambda value: getattr(value, "name", ""))
def test_database_probe_reports_its_check_only_if_there_is_a_problem(
    check: Check, probe: Probe[database.ProbedDatabase], rows: list[object]
) -> None:
    found = list(probe(Rows(*rows)))
    assert check in {each.check for each in found}
    assert all(each.what and each.why and each.fix for each in found)
    assert list(probe(Rows(*WELL.get(probe, [])))) == []
