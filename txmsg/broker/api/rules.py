"""The service Rules: who may do what. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from txmsg.access.permissions import resolved
from txmsg.access.rules import ADMIN, ADMIN_RULES, ROLE, Decision, Kind, Right, Rule, Rules, parse_rule
from txmsg.broker.access import LiveAccess
from txmsg.broker.store.access_rules import AccessRules
from txmsg.wire.rules import pack_rule
from txmsg.wire.v1 import rules_pb2 as pb


class RulesApi:
    """The service Rules. live: takes each change before it is answered; other brokers hear of it soon."""

    def __init__(self, rules: AccessRules, live: LiveAccess | None = None) -> None:
        self._rules = rules
        self._live = live

    async def list(self, request: pb.ListRulesRequest) -> pb.ListRulesReply:
        rules = Rules(await self._rules.list()).all
        if request.subject:
            subjects = {request.subject, *(ROLE + role for role in await self._roles_of(request.subject))}
            built_in = ADMIN_RULES if ROLE + ADMIN in subjects else ()
            rules = (*built_in, *(rule for rule in rules if rule.subject in subjects))
        return pb.ListRulesReply(rules=map(pack_rule, rules))

    async def allow(self, request: pb.AllowRequest) -> pb.AllowReply:
        changed = await self._rules.add(_rule(request.rule))
        await self._take()
        return pb.AllowReply(changed=changed)

    async def deny(self, request: pb.DenyRequest) -> pb.DenyReply:
        rule = _rule(request.rule)
        roles = await self._roles_of(rule.subject)
        reply = pb.DenyReply(changed=await self._rules.remove(rule))
        await self._take()
        still = (await self._decision(rule, roles)).rule
        if still is not None:
            reply.still.CopyFrom(pack_rule(still))
        return reply

    async def check(self, request: pb.CheckRuleRequest) -> pb.CheckRuleReply:
        asked = _rule(
            pb.AccessRule(subject=request.subject, action=request.action, kind=request.kind, pattern=request.name)
        )
        roles = await self._roles_of(asked.subject)
        allowed, rule = await self._decision(asked, roles)
        return pb.CheckRuleReply(allowed=allowed, rule=None if rule is None else pack_rule(rule), roles=roles)

    async def _take(self) -> None:
        if self._live is not None:
            await self._live.take()

    async def _decision(self, asked: Rule, roles: Sequence[str]) -> Decision:
        rights = Rules(await self._rules.list()).rights_of(asked.subject, roles)
        return rights.decide(*resolved(Right(asked.action, asked.kind), asked.pattern))  # of a prefix, its own prefixes

    async def _roles_of(self, subject: str) -> Sequence[str]:
        return [] if subject.startswith(ROLE) else await self._rules.roles_of(subject)


def _rule(rule: pb.AccessRule) -> Rule:
    kind, pattern = rule.kind, rule.pattern
    return parse_rule(rule.subject, rule.action, kind if kind == Kind.CLUSTER else f"{kind}:{pattern}")
