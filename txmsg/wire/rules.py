"""Rules of access as the protocol has them."""

from __future__ import annotations

from txmsg.access.rules import Action, Kind, Rule
from txmsg.wire.v1 import rules_pb2 as pb


def pack_rule(rule: Rule) -> pb.AccessRule:
    """A rule as a message."""
    return pb.AccessRule(subject=rule.subject, action=rule.action, kind=rule.kind, pattern=rule.pattern)


def unpack_rule(rule: pb.AccessRule) -> Rule:
    """The inverse of `pack_rule`."""
    return Rule(rule.subject, Action(rule.action), Kind(rule.kind), rule.pattern)
