"""Rules of access: the rights of users and roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.wire.access.rules import Rule
from txmsg.wire.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleQuery:
    """A query of rules of a user, with those of its roles, or of `role:NAME`; "": all."""

    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleList:
    """Rules by subject; those of role:admin are built in, and listed for users with the role."""

    rules: Sequence[Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAdded:
    """The reply to that. changed: False if the rule existed."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRemoved:
    """The reply to that. changed: the rule existed. still: another rule that allows the same."""

    changed: bool
    still: Rule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChecked:
    """The result of a check, and a rule that allows it. roles: of the user."""

    allowed: bool
    rule: Rule | None = None
    roles: Sequence[str] = ()


class RulesService:
    """The service Rules."""

    list: Final = Method("Rules/List", RuleQuery, RuleList)
    allow: Final = Method("Rules/Allow", Rule, RuleAdded)
    """Add a rule. Idempotent."""
    deny: Final = Method("Rules/Deny", Rule, RuleRemoved)
    """Remove a rule. Idempotent."""
    check: Final = Method("Rules/Check", Rule, RuleChecked)
    """Check if the subject may do this now; for a prefix and `*`: with all names that have the prefix."""
