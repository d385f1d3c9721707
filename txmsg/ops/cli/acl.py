"""`txmsg acl`: the rules of users and roles."""

from __future__ import annotations

import click

from txmsg.administration.ask import AskBroker
from txmsg.administration.rules import RuleQuery, RulesService
from txmsg.ops.cli.connections import database_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, table_options
from txmsg.ops.cli.output import json_text, print_rows, say
from txmsg.wire.access.rules import ADMIN, ROLE, Rule, parse_rule

_NOT_ALLOWED = 1
"""The exit status of `txmsg acl check` if the action is not allowed."""


@click.group()
def acl() -> None:
    """Give users and roles permissions; everything else is refused.

    PRINCIPAL is a user, or role:NAME for everyone who has the role. ACTION is send, receive, check, describe, read or
    administer. NAME is topic:NAME, group:NAME or cluster; topic:orders* is every topic with this prefix.
    """


@acl.command(
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg acl allow shop send topic:orders\n"
    "  txmsg acl allow role:billing receive 'topic:orders*'"
)
@click.argument("principal")
@click.argument("action")
@click.argument("name")
@database_option
@json_option
def allow(*, principal: str, action: str, name: str, ask: AskBroker, as_json: bool) -> None:
    """Add a rule. It takes effect at all brokers within 2 s."""
    rule = parse_rule(principal, action, name)
    changed = ask(RulesService.allow, rule).changed
    if as_json:
        click.echo(json_text({"rule": _values(rule), "changed": changed}))
    else:
        say(f"{rule}: allowed" if changed else f"{rule}: was allowed already")


@acl.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg acl deny shop send topic:orders")
@click.argument("principal")
@click.argument("action")
@click.argument("name")
@database_option
@json_option
def deny(*, principal: str, action: str, name: str, ask: AskBroker, as_json: bool) -> None:
    """Remove a rule, given as it was allowed. There are no rules that forbid.

    If another rule still allows the same, by a prefix or a role, it is printed.
    """
    rule = parse_rule(principal, action, name)
    denied = ask(RulesService.deny, rule)
    if as_json:
        # Removing a rule does not forbid: a prefix or a role may still allow it, which an operator who denies must
        # learn.
        still = None if denied.still is None else _values(denied.still)
        click.echo(json_text({"rule": _values(rule), "changed": denied.changed, "still_allowed_by": still}))
        return
    say(f"{rule}: removed" if denied.changed else f"{rule}: there is no such rule")
    if denied.still is not None:
        say(f"still allowed by: {denied.still}", err=True)


@acl.command(
    "list",
    short_help="List the rules, or those of one principal.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg acl list\n  txmsg acl list shop --json",
)
@click.argument("principal", default="")
@database_option
@json_option
@table_options
def list_(*, principal: str, ask: AskBroker, as_json: bool) -> None:
    """List all rules, or those of PRINCIPAL; for a user, including those of its roles."""
    found = ask(RulesService.list, RuleQuery(subject=principal)).rules
    if as_json:
        click.echo(json_text({"rules": [_values(each) for each in found]}))
    elif found:
        print_rows(_values(each) for each in found)
    else:
        say("no rules" + (f" for {principal}" if principal else ""))


@acl.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg acl check shop send topic:orders")
@click.argument("principal")
@click.argument("action")
@click.argument("name")
@database_option
@json_option
def check(*, principal: str, action: str, name: str, ask: AskBroker, as_json: bool) -> None:
    """Check whether PRINCIPAL may do this, and by which rule. Exit status 1 if not."""
    asked = parse_rule(principal, action, name)
    found = ask(RulesService.check, asked)
    if as_json:
        rule = None if found.rule is None else _values(found.rule)
        click.echo(json_text({"allowed": found.allowed, "rule": rule, "roles": list(found.roles)}))
    elif found.rule is not None:
        is_built_in = found.rule.subject == ROLE + ADMIN
        say(f"allowed: {found.rule}" + (f" (the role {ADMIN} is built in)" if is_built_in else ""))
    else:
        roles = f", with the roles {', '.join(found.roles)}" if found.roles else ""
        say(f"not allowed: no rule lets {principal}{roles} {action} {name}")
    if not found.allowed:
        click.get_current_context().exit(_NOT_ALLOWED)


def _values(rule: Rule) -> dict[str, object]:
    return {"principal": rule.subject, "action": rule.action.value, "name": rule.resource}
