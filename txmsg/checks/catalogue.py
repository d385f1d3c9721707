"""All checks, and their findings in the figures of a moment."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from txmsg.checks import brokers, database, logs, messages
from txmsg.checks.check import Check, Finding
from txmsg.checks.conditions import LevelCondition, Samples, holding, scope_of
from txmsg.checks.texts import VALUE
from txmsg.checks.thresholds import DEFAULTS, Thresholds
from txmsg.metrics.catalogue import Scope


def _of(module: ModuleType) -> Iterator[Check]:
    return (each for each in vars(module).values() if isinstance(each, Check))


CHECKS: Final = tuple(check for module in (brokers, messages, database, logs) for check in _of(module))
"""Every check, in the order of the documentation."""
RULES: Final = tuple(check for check in CHECKS if check.condition is not None)
"""Checks with a condition on figures: Prometheus' rules."""
BUILT_IN: Final = {check.alert: check for check in RULES if scope_of(check.condition) is not None}
"""Checks that brokers evaluate themselves, by the names of their alerts."""
BY_ALERT: Final = {check.alert: check for check in CHECKS}


def findings_in(samples: Samples, thresholds: Thresholds = DEFAULTS, scope: Scope | None = None) -> Iterator[Finding]:
    """Yield the findings in current figures, check by check, the worst series of each first. Ignores rises of counters.

    scope: only checks of this scope, of those that brokers evaluate; None: all.
    """
    for check in RULES:
        if scope not in {None, scope_of(check.condition)}:
            continue
        held = holding(check.condition, samples, thresholds=thresholds) or {}
        # The worst value is the smallest for `<`, else the greatest.
        sign = 1 if isinstance(check.condition, LevelCondition) and check.condition.sign == "<" else -1
        for value, labels in sorted((sign * value, sorted(labels)) for labels, value in held.items()):
            yield check.found(**{**dict(labels), VALUE: sign * value})
