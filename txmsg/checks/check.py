"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from txmsg.checks.conditions import Condition, promql_duration
from txmsg.checks.texts import LABELS, CheckTexts, chinese, filled, for_prometheus, sentence


class Severity(StrEnum):
    """How soon somebody must look."""

    CRITICAL = "critical"
    """Now: messages wait, are lost, or are in danger."""
    WARNING = "warning"
    """Within the day: it works, but will not for ever, or not after the next fault."""
    NOTE = "note"
    """Never: it is as somebody wants it, or passes by itself."""


CRITICAL, WARNING, NOTE = Severity


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Something that can be wrong.

    Texts are parts of sentences with fields, as in txmsg/checks/texts.py.
    """

    name: str
    """In lower case with dashes: `group-behind`. Its alert is `TxmsgGroupBehind`."""
    severity: Severity
    what: str
    """What is wrong, when it is."""
    why: str = field(kw_only=True)
    """Why that matters."""
    fix: str = field(kw_only=True)
    """What to do."""
    condition: Condition | None = field(default=None, kw_only=True)
    """When figures show it. None: a probe finds it."""
    for_s: float = field(default=0.0, kw_only=True)
    """How long the condition must hold until an alert fires."""

    def found(self, told: str = "", /, **fields: object) -> Finding:
        """That it is so. told: what the probe has seen, where it can say more than `what`."""
        return Finding(check=self, fields={LABELS.get(name, name): value for name, value in fields.items()}, told=told)

    @property
    def alert(self) -> str:
        """The name of its alert."""
        return "Txmsg" + self.name.title().replace("-", "")

    # ---- as Prometheus has it

    @property
    def summary(self) -> str:
        """What is wrong."""
        return for_prometheus(self.what)

    @property
    def action(self) -> str:
        """What to do."""
        return sentence(for_prometheus(self.fix))

    @property
    def expr(self) -> str:
        """The condition."""
        assert self.condition is not None
        return self.condition.promql

    @property
    def for_(self) -> str:
        """For how long."""
        return promql_duration(self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """That something is wrong, with the fields of the texts of its check."""

    check: Check
    fields: Mapping[str, object]
    told: str = ""

    @property
    def severity(self) -> Severity:
        """How soon somebody must look."""
        return self.check.severity

    @property
    def what(self) -> str:
        """What is wrong."""
        return self.told or filled(self.check.what, self.fields)

    @property
    def why(self) -> str:
        """Why that matters."""
        return filled(self.check.why, self.fields)

    @property
    def fix(self) -> str:
        """What to do."""
        return filled(self.check.fix, self.fields)

    def what_in(self, language: str) -> str:
        """What is wrong, in `en` or `zh`."""
        words = chinese().get(self.check.name) if language == "zh" else None
        return self.what if words is None else filled(words.what, self.fields)


def words_of(check: Check, language: str = "en") -> CheckTexts:
    """The texts of a check in a language, in English if it has no others."""
    return (chinese().get(check.name) if language == "zh" else None) or CheckTexts(check.what, check.why, check.fix)
