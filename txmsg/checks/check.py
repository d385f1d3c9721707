"""Checks and their findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from txmsg.checks.conditions import Condition, promql_duration
from txmsg.checks.texts import LABELS, CheckTexts, chinese, filled, for_prometheus, sentence


class Severity(StrEnum):
    """The urgency of a finding."""

    CRITICAL = "critical"
    """Act now: messages wait, are lost, or are in danger."""
    WARNING = "warning"
    """Act within the day: it works, but not for ever, or not after the next fault."""
    NOTE = "note"
    """No action: it is intended, or passes by itself."""


CRITICAL, WARNING, NOTE = Severity


# Compared and hashed by identity: conditions hold dicts, which have no hash.
@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """A possible fault of a running system.

    Texts are parts of sentences with fields, as in txmsg/checks/texts.py.
    """

    name: str
    """The name, in lower case with dashes: `group-behind`. Its alert is `TxmsgGroupBehind`."""
    severity: Severity
    what: str
    """The fault."""
    why: str = field(kw_only=True)
    """The fault's effect."""
    fix: str = field(kw_only=True)
    """The remedy."""
    condition: Condition | None = field(default=None, kw_only=True)
    """The condition on figures by which the fault is found. None: a probe finds it."""
    for_s: float = field(default=0.0, kw_only=True)
    """Seconds that the condition must hold before an alert fires."""

    def found(self, told: str = "", /, **fields: object) -> Finding:
        """Return a finding of this check. told: the probe's own text, where it says more than `what`."""
        return Finding(check=self, fields={LABELS.get(name, name): value for name, value in fields.items()}, told=told)

    @property
    def alert(self) -> str:
        """The name of its alert."""
        return "Txmsg" + self.name.title().replace("-", "")

    # ---- as Prometheus has it

    @property
    def summary(self) -> str:
        """The fault, with fields in Prometheus' form."""
        return for_prometheus(self.what)

    @property
    def action(self) -> str:
        """The remedy as a sentence, with fields in Prometheus' form."""
        return sentence(for_prometheus(self.fix))

    @property
    def expr(self) -> str:
        """The condition in PromQL."""
        assert self.condition is not None
        return self.condition.promql

    @property
    def for_(self) -> str:
        """The duration that the condition must hold, as Prometheus writes it."""
        return promql_duration(self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that was found, with the fields of its check's texts."""

    check: Check
    fields: Mapping[str, object]
    told: str = ""

    @property
    def severity(self) -> Severity:
        """The urgency."""
        return self.check.severity

    @property
    def what(self) -> str:
        """The fault, in words."""
        return self.told or filled(self.check.what, self.fields)

    @property
    def why(self) -> str:
        """The effect, in words."""
        return filled(self.check.why, self.fields)

    @property
    def fix(self) -> str:
        """The remedy, in words."""
        return filled(self.check.fix, self.fields)

    def what_in(self, language: str) -> str:
        """Return the fault in `en` or `zh`."""
        words = chinese().get(self.check.name) if language == "zh" else None
        return self.what if words is None else filled(words.what, self.fields)


def words_of(check: Check, language: str = "en") -> CheckTexts:
    """Return the texts of a check in a language, or in English without a translation."""
    return (chinese().get(check.name) if language == "zh" else None) or CheckTexts(check.what, check.why, check.fix)
