"""Allow rules, and the rights that they add up to. Knows no request, no database and no connection.

A rule allows a subject (a principal, or all of a role) one action on what a pattern names: an exact name, or every name
with a prefix. Nothing is allowed without a rule. Rules only allow, so their order does not matter, and taking one away
never gives a right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from txmsg.errors import MisuseError, shown
from txmsg.message import is_name
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

ROLE = "role:"
"""Prefix of a rule's subject for a role: `role:NAME` is every user with the role."""
ADMIN = "admin"
"""The built-in role that may do everything."""

_SUBJECT = re.compile(r"(role:)?[A-Za-z0-9][A-Za-z0-9._@-]{0,126}")


class Action(StrEnum):
    """An action of a principal."""

    SEND = "send"
    """Send messages to a topic; send half messages of a producer group, and report their outcomes."""
    RECEIVE = "receive"
    """Receive messages of a topic, as a member of a consumer group."""
    CHECK = "check"
    """Be asked for the outcomes of a producer group's transactions: the request carries the message."""
    DESCRIBE = "describe"
    """See names, settings and figures. Included in every other right on a name."""
    READ = "read"
    """Read bodies and headers in administration; of the cluster: users, rules and the audit log."""
    ADMINISTER = "administer"
    """Change and delete; of a group also decide, redrive, purge and seek. Does not include `read`."""


class ResourceKind(StrEnum):
    """The kind of thing that an action applies to. There is one cluster, which has no name."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Right(NamedTuple):
    """An action on a kind of thing."""

    action: Action
    kind: ResourceKind


RIGHTS = tuple(
    Right(action, kind)
    for kind, actions in {
        ResourceKind.TOPIC: (Action.SEND, Action.RECEIVE, Action.DESCRIBE, Action.READ, Action.ADMINISTER),
        ResourceKind.GROUP: (Action.SEND, Action.RECEIVE, Action.CHECK, Action.DESCRIBE, Action.ADMINISTER),
        ResourceKind.CLUSTER: (Action.DESCRIBE, Action.READ, Action.ADMINISTER),
    }.items()
    for action in actions
)
"""The valid pairs of action and kind."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows one thing. subject: a principal, or `role:NAME`. pattern: a name, or a prefix and `*`."""

    subject: str
    action: Action
    kind: ResourceKind
    pattern: str

    @property
    def resource(self) -> str:
        """Text form of the resource: `topic:orders*`, or `cluster`."""
        return resource_text(self.kind, self.pattern)

    def __str__(self) -> str:
        return f"{self.subject} {self.action} {self.resource}"


class AccessDecision(NamedTuple):
    """An answer, and the rule that allows it: one of them if there are several."""

    allowed: bool
    rule: Rule | None


_DENIED = AccessDecision(False, None)


class Names(NamedTuple):
    """Names for which an action is allowed: these, and all names with one of these prefixes."""

    exact: list[str]
    prefixes: list[str]


ALL_NAMES = Names([], [""])


class _Grants:
    """Patterns of the rules for one right."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self) -> None:
        self._exact: dict[str, AccessDecision] = {}
        self._prefixes: list[tuple[str, AccessDecision]] = []

    def add(self, rule: Rule) -> None:
        decision = AccessDecision(True, rule)
        if rule.pattern.endswith("*"):
            self._prefixes.append((rule.pattern[:-1], decision))
        else:
            self._exact[rule.pattern] = decision

    def decide(self, name: str) -> AccessDecision:
        # Exact names first: a dict lookup, where prefixes are compared one by one.
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        for prefix, decision in self._prefixes:
            if name.startswith(prefix):
                return decision
        return _DENIED

    def names(self) -> Names:
        return Names(list(self._exact), [prefix for prefix, _ in self._prefixes])


class Rights:
    """All rights of one principal. A check costs one or two dict lookups, and one comparison per prefix rule."""

    __slots__ = ("_grants", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._grants: dict[Right, _Grants] = {}
        self.rules = tuple(rules)
        for rule in self.rules:
            self._grant(Right(rule.action, rule.kind), rule)
            # Every right includes DESCRIBE on the same names. Resolved here once instead of in each check.
            if rule.action is not Action.DESCRIBE:
                self._grant(Right(Action.DESCRIBE, rule.kind), rule)

    def _grant(self, right: Right, rule: Rule) -> None:
        if right not in self._grants:
            self._grants[right] = _Grants()
        self._grants[right].add(rule)

    def decide(self, right: Right, name: str) -> AccessDecision:
        """Return the decision for a name. The empty name means all names of the kind: only the pattern `*` allows that;
        the cluster has no other."""
        grants = self._grants.get(right)
        return _DENIED if grants is None else grants.decide(name)

    def names(self, right: Right) -> Names:
        """Return the names for which an action is allowed."""
        grants = self._grants.get(right)
        return Names([], []) if grants is None else grants.names()

    def has(self, right: Right) -> bool:
        """Return True if the action is allowed for any name."""
        return right in self._grants


class RuleSet:
    """All rules, by subject."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(sorted(set(rules), key=lambda rule: (rule.subject, rule.kind, rule.pattern, rule.action)))
        self._by_subject: dict[str, list[Rule]] = {ROLE + ADMIN: list(ADMIN_RULES)}
        for rule in self.all:
            self._by_subject.setdefault(rule.subject, []).append(rule)

    def rights_of(self, name: str, roles: Collection[str]) -> Rights:
        """Return the rights of a principal with these roles. Made once for each principal, and checked for each of its
        calls."""
        subjects = (name, *(ROLE + role for role in sorted(roles)))
        return Rights(rule for subject in subjects for rule in self._by_subject.get(subject, ()))


ADMIN_RULES = tuple(Rule(ROLE + ADMIN, right.action, right.kind, "*") for right in RIGHTS)


def resource_text(kind: ResourceKind, pattern: str) -> str:
    """Return the text form of a resource; the inverse of `parse_resource`."""
    return str(kind) if kind is ResourceKind.CLUSTER else f"{kind}:{pattern}"


def parse_rule(subject: str, action: str, resource: str) -> Rule:
    """Return the rule that a text such as `billing send topic:orders*` describes. Raises MisuseError, which names the
    valid values."""
    if not _SUBJECT.fullmatch(subject):
        raise MisuseError(
            f"{shown(subject)} is not the name of a user or `role:NAME`: use letters, digits and . _ - @, at most 127"
        )
    kind, pattern = parse_resource(resource)
    rights = [right for right in RIGHTS if right.kind is kind]
    for right in rights:
        if right.action == action:
            return Rule(subject, right.action, kind, pattern)
    allowed = ", ".join(right.action for right in rights)
    raise MisuseError(f"{shown(action)} is not an action on a {kind}: use one of {allowed}")


def known_rules(stored: Iterable[tuple[str, str, str, str]]) -> Iterator[Rule]:
    """Yield rules from their stored form: subject, action, kind, pattern.

    Rules of a newer release that this one does not know are skipped and logged: rules only allow, so skipping one never
    grants a right.
    """
    for subject, action, kind, pattern in stored:
        try:
            yield Rule(subject, Action(action), ResourceKind(kind), pattern)
        # Skipped, not raised: a cluster is upgraded broker by broker, and an old broker must keep its users while a new
        # one already stores rules that it does not know.
        except ValueError:
            _log.warning(
                "access.rule_unknown",
                "the rule %(rule)s is of a newer release: it allows nothing here",
                rule=f"{subject} {action} {kind}:{pattern}",
            )


def parse_resource(text: str) -> tuple[ResourceKind, str]:
    """Return kind and pattern of `topic:orders`, `group:billing*` or `cluster`. Raises MisuseError."""
    if text == ResourceKind.CLUSTER:
        return ResourceKind.CLUSTER, "*"
    kind, _, pattern = text.partition(":")
    is_prefix = pattern.endswith("*")
    if kind not in (ResourceKind.TOPIC, ResourceKind.GROUP) or not (
        pattern == "*" or is_name(pattern[:-1] if is_prefix else pattern)
    ):
        raise MisuseError(
            f"{shown(text)} does not name what a rule is for: use topic:NAME, group:NAME or cluster, where NAME may "
            "end in * (every name with this prefix)"
        )
    return ResourceKind(kind), pattern


def rules_of(table: Mapping[str, Iterable[str]]) -> list[Rule]:
    """Return the rules of a file: lists of `ACTION RESOURCE` by subject. Raises MisuseError for an invalid entry."""
    rules = []
    for subject, entries in table.items():
        for entry in entries:
            action, _, resource = entry.partition(" ")
            rules.append(parse_rule(subject, action, resource.strip()))
    return rules
