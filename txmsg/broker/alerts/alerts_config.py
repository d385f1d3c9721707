"""Settings of alerts: times, rules that are off, and the thresholds of checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from txmsg.checks.catalogue import BUILT_IN
from txmsg.checks.check import Check
from txmsg.checks.thresholds import Thresholds
from txmsg.errors import MisuseError, shown
from txmsg.settings.catalogue import DURATION_S_MAX, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig(Thresholds):
    """The conditions and times of alerts."""

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

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.off.split():
            if name not in BUILT_IN:
                near = get_close_matches(name, BUILT_IN, n=1)
                raise MisuseError(
                    f"off={shown(self.off)} names {shown(name)}, which is not a built-in rule"
                    f"{f': did you mean {near[0]}?' if near else ''}; docs/alerts.md lists them"
                )


def built_in_rules(config: AlertsConfig) -> Iterator[Check]:
    """Return the built-in rules that are on."""
    off = set(config.off.split())
    return (check for name, check in BUILT_IN.items() if name not in off)
