"""Settings of alerts: times, and the thresholds of built-in rules, whose defaults are those of Prometheus' rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from txmsg.broker.alerts.conditions import scope_of
from txmsg.errors import MisuseError, shown
from txmsg.metrics.rules import ALERTS, Alert, PromQL, threshold_of
from txmsg.settings.catalogue import COUNT_MAX, DURATION_S_MAX, SIZE_BYTES_MAX, check_settings, setting

BUILT_IN: Final = {alert.name: alert for alert in ALERTS if scope_of(alert) is not None}
"""The rules that brokers evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    """When brokers raise alerts."""

    file: str = setting(
        "",
        "TOML file with receivers and custom rules; the same for all brokers of a database.",
        metavar="FILE",
        option="--alerts",
        shown="no receivers: alerts are logged and listed",
    )
    interval_s: float = setting(30.0, "Time between evaluations of the rules.", least=1)
    keep_firing_s: float = setting(
        60.0,
        "Time for which the condition of a firing alert must not hold before the alert is resolved.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    repeat_s: float = setting(
        4 * 3600.0,
        "Time after which receivers are notified again of an alert that still fires.",
        least=60,
        most=DURATION_S_MAX,
        live=True,
    )
    off: str = setting("", "Built-in rules that are not evaluated: their names, separated by spaces.", live=True)
    group_behind_s: float = setting(
        threshold_of("TxmsgGroupBehind"),
        "TxmsgGroupBehind: age of the oldest message that a group has not processed.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    dead_letters: int = setting(
        round(threshold_of("TxmsgDeadLetters")),
        "TxmsgDeadLetters: number of dead letters of a group in a topic.",
        least=0,
        most=COUNT_MAX,
        live=True,
    )
    in_doubt_s: float = setting(
        threshold_of("TxmsgTransactionsInDoubt"),
        "TxmsgTransactionsInDoubt: age of the oldest transaction that was checked and is still undecided.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    check_overdue_s: float = setting(
        threshold_of("TxmsgChecksOverdue"),
        "TxmsgChecksOverdue: time for which the check of a transaction has been due.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    parked: int = setting(
        round(threshold_of("TxmsgTransactionsParked")),
        "TxmsgTransactionsParked: number of parked transactions.",
        least=0,
        most=COUNT_MAX,
        live=True,
    )
    bound_ratio: float = setting(
        threshold_of("TxmsgBoundNear"),
        "TxmsgBoundNear: used share of a bounded resource.",
        least=0,
        most=1000,
        live=True,
    )
    segments_ratio: float = setting(
        threshold_of("TxmsgSegmentsTooLarge"),
        "TxmsgSegmentsTooLarge: size of all segments, relative to retention_size_bytes.",
        least=0,
        most=1000,
        live=True,
    )
    mirror_behind_s: float = setting(
        threshold_of("TxmsgMirrorBehind"),
        "TxmsgMirrorBehind: age of the oldest message that is not mirrored.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    disk_free_ratio: float = setting(
        threshold_of("TxmsgDiskNearlyFull"),
        "TxmsgDiskNearlyFull: free share of a disk.",
        least=0,
        most=1,
        live=True,
    )
    slot_kept_size_bytes: int = setting(
        round(threshold_of("TxmsgSlotKeepsLog")),
        "TxmsgSlotKeepsLog: bytes of write-ahead log that a replication slot keeps.",
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
    )
    slot_safe_size_bytes: int = setting(
        round(threshold_of("TxmsgSlotInDanger")),
        "TxmsgSlotInDanger: bytes that can still be written before the slot of a mirror is lost.",
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.off.split():
            if name not in BUILT_IN:
                near = get_close_matches(name, BUILT_IN, n=1)
                raise MisuseError(
                    f"off={shown(self.off)} names {shown(name)}, which is not a built-in rule"
                    f"{f': did you mean {near[0]}?' if near else ''}; docs/alerts.md lists them"
                )


THRESHOLDS: Final = {
    "TxmsgDiskNearlyFull": "disk_free_ratio",
    "TxmsgGroupBehind": "group_behind_s",
    "TxmsgDeadLetters": "dead_letters",
    "TxmsgTransactionsInDoubt": "in_doubt_s",
    "TxmsgChecksOverdue": "check_overdue_s",
    "TxmsgTransactionsParked": "parked",
    "TxmsgBoundNear": "bound_ratio",
    "TxmsgSegmentsTooLarge": "segments_ratio",
    "TxmsgMirrorBehind": "mirror_behind_s",
    "TxmsgSlotKeepsLog": "slot_kept_size_bytes",
    "TxmsgSlotInDanger": "slot_safe_size_bytes",
}
"""The setting that is the threshold of a rule. The others are about something that must not be at all."""


def built_in_rules(config: AlertsConfig) -> Iterator[Alert]:
    """The built-in rules that are on, with their thresholds."""
    off = set(config.off.split())
    for name, alert in BUILT_IN.items():
        if name not in off:
            yield _with_threshold(alert, config)


def _with_threshold(alert: Alert, config: AlertsConfig) -> Alert:
    if alert.name not in THRESHOLDS or isinstance(alert.condition, PromQL):
        return alert
    threshold: float = getattr(config, THRESHOLDS[alert.name])
    return replace(alert, condition=replace(alert.condition, threshold=threshold))
