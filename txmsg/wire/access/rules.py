"""Who may do what: allow rules, and the rights that they add up to. Knows no request, no database and no connection.

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
"""`role:NAME` is the subject of a rule for everyone who has the role."""
ADMIN = "admin"
"""The built-in role that may do everything."""

_SUBJECT = re.compile(r"(role:)?[A-Za-z0-9][A-Za-z0-9._@-]{0,126}")


class Action(StrEnum):
    """What a principal does."""

    SEND = "send"
    """Send messages to a topic; send half messages of a producer group, and report their outcomes."""
    RECEIVE = "receive"
    """Receive messages of a topic, as a member of a consumer group."""
    CHECK = "check"
    """Be asked for the outcomes of a producer group's transactions: the request carries the message."""
    DESCRIBE = "describe"
    """See names, settings and figures. Whoever has another right on a name has this one, too."""
    READ = "read"
    """Read bodies and headers in administration; of the cluster: users, rules and the audit log."""
    ADMINISTER = "administer"
    """Change and delete; of a group also decide, redrive, purge and seek. Does not include `read`."""


class ResourceKind(StrEnum):
    """What it is done to. There is one cluster, which has no name."""

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
"""Those that there are."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows one thing. subject: a principal, or `role:NAME`. pattern: a name, or a prefix and `*`."""

    subject: str
    action: Action
    kind: ResourceKind
    pattern: str

    @property
    def resource(self) -> str:
        """As people write it: `topic:orders*`, or `cluster`."""
        return resource_text(self.kind, self.pattern)

    def __str__(self) -> str:
        return f"{self.subject} {self.action} {self.resource}"


class AccessDecision(NamedTuple):
    """Whether something is allowed, and by which rule: one of them if there are several."""

    allowed: bool
    rule: Rule | None


_DENIED = AccessDecision(False, None)


class Names(NamedTuple):
    """For which names something is allowed: these, and those with one of these prefixes."""

    exact: list[str]
    prefixes: list[str]


ALL_NAMES = Names([], [""])


class _Grants:
    """What rules for one right match."""

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
    """All that one principal may do. A question costs a dict lookup or two, and one comparison per prefix rule."""

    __slots__ = ("_grants", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._grants: dict[Right, _Grants] = {}
        self.rules = tuple(rules)
        for rule in self.rules:
            self._grant(Right(rule.action, rule.kind), rule)
            if rule.action is not Action.DESCRIBE:
                self._grant(Right(Action.DESCRIBE, rule.kind), rule)

    def _grant(self, right: Right, rule: Rule) -> None:
        if right not in self._grants:
            self._grants[right] = _Grants()
        self._grants[right].add(rule)

    def decide(self, right: Right, name: str) -> AccessDecision:
        """The empty name stands for all of the kind: only the pattern `*` allows that, and the cluster has no other."""
        grants = self._grants.get(right)
        return _DENIED if grants is None else grants.decide(name)

    def names(self, right: Right) -> Names:
        """For which names it is allowed."""
        grants = self._grants.get(right)
        return Names([], []) if grants is None else grants.names()

    def has(self, right: Right) -> bool:
        """Whether there is any name for which it is allowed."""
        return right in self._grants


class RuleSet:
    """All rules, by subject."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(sorted(set(rules), key=lambda rule: (rule.subject, rule.kind, rule.pattern, rule.action)))
        self._by_subject: dict[str, list[Rule]] = {ROLE + ADMIN: list(ADMIN_RULES)}
        for rule in self.all:
            self._by_subject.setdefault(rule.subject, []).append(rule)

    def rights_of(self, name: str, roles: Collection[str]) -> Rights:
        """Those of a principal with these roles. Made once for each principal, and asked for each of its calls."""
        subjects = (name, *(ROLE + role for role in sorted(roles)))
        return Rights(rule for subject in subjects for rule in self._by_subject.get(subject, ()))


ADMIN_RULES = tuple(Rule(ROLE + ADMIN, right.action, right.kind, "*") for right in RIGHTS)


def resource_text(kind: ResourceKind, pattern: str) -> str:
    """The inverse of `parse_resource`."""
    return str(kind) if kind is ResourceKind.CLUSTER else f"{kind}:{pattern}"


def parse_rule(subject: str, action: str, resource: str) -> Rule:
    """A rule as people write it: `billing send topic:orders*`. Raises MisuseError, which says what is allowed."""
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
    """Rules as they are stored: subject, action, kind, pattern.

    Those of a newer release that this one does not know are left out and logged: rules only allow, so that gives nobody
    a right.
    """
    for subject, action, kind, pattern in stored:
        try:
            yield Rule(subject, Action(action), ResourceKind(kind), pattern)
        except ValueError:
            _log.warning(
                "access.rule_unknown",
                "the rule %(rule)s is of a newer release: it allows nothing here",
                rule=f"{subject} {action} {kind}:{pattern}",
            )


def parse_resource(text: str) -> tuple[ResourceKind, str]:
    """`topic:orders`, `group:billing*` or `cluster`, as kind and pattern."""
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
    """Of a file: lists of `ACTION RESOURCE` by subject. Raises MisuseError for an entry that is not one."""
    rules = []
    for subject, entries in table.items():
        for entry in entries:
            action, _, resource = entry.partition(" ")
            rules.append(parse_rule(subject, action, resource.strip()))
    return rules
