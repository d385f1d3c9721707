"""The service Rules: checks rules, finds those of a user, and decides on a question by them."""

from __future__ import annotations

from collections.abc import Sequence

from txmsg.administration.rules import RuleAdded, RuleChecked, RuleList, RuleQuery, RuleRemoved
from txmsg.broker.access import LiveAccess
from txmsg.broker.store.access_rules import AccessRules
from txmsg.wire.access.permissions import resolved
from txmsg.wire.access.rules import ADMIN, ADMIN_RULES, ROLE, AccessDecision, Right, Rule, RuleSet, parse_rule


class RulesApi:
    """The service Rules. live: applies each change before it is answered; other brokers apply it soon."""

    def __init__(self, rules: AccessRules, live: LiveAccess | None = None) -> None:
        self._rules = rules
        self._live = live

    async def list(self, query: RuleQuery) -> RuleList:
        rules = RuleSet(await self._rules.list()).all
        if query.subject:
            subjects = {query.subject, *(ROLE + role for role in await self._roles_of(query.subject))}
            # The rules of the role admin are not in the table, so that no change can remove them.
            built_in = ADMIN_RULES if ROLE + ADMIN in subjects else ()
            rules = (*built_in, *(rule for rule in rules if rule.subject in subjects))
        return RuleList(rules=rules)

    async def allow(self, given: Rule) -> RuleAdded:
        changed = await self._rules.add(_checked(given))
        await self._apply_change()
        return RuleAdded(changed=changed)

    async def deny(self, given: Rule) -> RuleRemoved:
        rule = _checked(given)
        roles = await self._roles_of(rule.subject)
        changed = await self._rules.remove(rule)
        await self._apply_change()
        return RuleRemoved(changed=changed, still=(await self._decision(rule, roles)).rule)

    async def check(self, given: Rule) -> RuleChecked:
        asked = _checked(given)
        roles = await self._roles_of(asked.subject)
        allowed, rule = await self._decision(asked, roles)
        return RuleChecked(allowed=allowed, rule=rule, roles=roles)

    async def _apply_change(self) -> None:
        if self._live is not None:
            await self._live.apply_change()

    async def _decision(self, asked: Rule, roles: Sequence[str]) -> AccessDecision:
        rights = RuleSet(await self._rules.list()).rights_of(asked.subject, roles)
        return rights.decide(
            *resolved(Right(asked.action, asked.kind), asked.pattern)
        )  # for a prefix, its own prefixes

    async def _roles_of(self, subject: str) -> Sequence[str]:
        return [] if subject.startswith(ROLE) else await self._rules.roles_of(subject)


def _checked(rule: Rule) -> Rule:
    return parse_rule(rule.subject, rule.action, rule.resource)
