"""Rules of access: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.wire.access.rules import Rule
from txmsg.wire.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleQuery:
    """Whose rules: those of a user with its roles' rules, or of `role:NAME`; "": all."""

    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleList:
    """Rules by subject; those of role:admin are built in, and listed for who has the role."""

    rules: Sequence[Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAdded:
    """changed: False if the rule was there."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRemoved:
    """changed: the rule was there. still: another one, which allows the same."""

    changed: bool
    still: Rule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChecked:
    """Whether something is allowed, and a rule that allows it. roles: of the user."""

    allowed: bool
    rule: Rule | None = None
    roles: Sequence[str] = ()


class RulesService:
    """The service Rules."""

    list: Final = Method("Rules/List", RuleQuery, RuleList)
    allow: Final = Method("Rules/Allow", Rule, RuleAdded)
    """Adds a rule. Idempotent."""
    deny: Final = Method("Rules/Deny", Rule, RuleRemoved)
    """Takes a rule away. Idempotent."""
    check: Final = Method("Rules/Check", Rule, RuleChecked)
    """Whether its subject may do this now; a prefix and `*`: with all names that begin so."""
