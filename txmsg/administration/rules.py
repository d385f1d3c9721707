"""Rules of access, by the service Rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txmsg.access.rules import Rule
from txmsg.administration.ask import Ask
from txmsg.wire.rules import pack_rule, unpack_rule
from txmsg.wire.v1 import rules_pb2 as pb
from txmsg.wire.v1.rules_rpc import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether something is allowed, and a rule that allows it. roles: of the user."""

    allowed: bool
    rule: Rule | None
    roles: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """changed: the rule was there. still: another one, which allows the same."""

    changed: bool
    still: Rule | None


class RuleAdministration:
    """What `txmsg acl` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(self, subject: str = "") -> Sequence[Rule]:
        """All rules; or those of a user, with its roles' rules, or of `role:NAME`."""
        return [unpack_rule(each) for each in self._ask(Rules.list, pb.ListRulesRequest(subject=subject)).rules]

    def allow(self, rule: Rule) -> bool:
        """Adds a rule. False: it was there."""
        return self._ask(Rules.allow, pb.AllowRequest(rule=pack_rule(rule))).changed

    def deny(self, rule: Rule) -> Denied:
        """Takes a rule away."""
        reply = self._ask(Rules.deny, pb.DenyRequest(rule=pack_rule(rule)))
        return Denied(changed=reply.changed, still=unpack_rule(reply.still) if reply.HasField("still") else None)

    def check(self, asked: Rule) -> Checked:
        """Whether its subject may do this."""
        reply = self._ask(
            Rules.check,
            pb.CheckRuleRequest(subject=asked.subject, action=asked.action, kind=asked.kind, name=asked.pattern),
        )
        return Checked(
            allowed=reply.allowed,
            rule=unpack_rule(reply.rule) if reply.HasField("rule") else None,
            roles=list(reply.roles),
        )
