"""`txmsg audit`: changes and their users. Asks the service Audit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from txmsg.administration.audit import AuditQuery, AuditService
from txmsg.errors import MisuseError, shown
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import TIME, json_option, page_option, table_options
from txmsg.ops.cli.output import json_text, print_rows, say


@click.group()
def audit() -> None:
    """Show the audit log: changes with their user, address, and the values before and after.

    Without authentication every user is `anyone`; the address then identifies the client.
    """


@audit.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg audit list --since 2h --action topic")
@click.option("--since", type=TIME, help="Since this time: 2026-05-01T10:00:00Z, or 2h for two hours ago.")
@click.option("--who", default="", metavar="NAME", help="Only changes of this principal.")
@click.option(
    "--action",
    default="",
    metavar="ACTION",
    help="Only this action, such as topic.alter; topic: all actions on topics.",
)
@click.option("--target", default="", metavar="NAME", help="Only changes of this topic, group, setting, ...")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number.")
@page_option
@broker_option
@json_option
@table_options
def list_(
    *,
    broker: str,
    since: datetime | None,
    who: str,
    action: str,
    target: str,
    limit: int,
    page: str,
    as_json: bool,
) -> None:
    """List entries of the audit log, the newest first. Brokers keep them for `audit_retention_s`."""
    if page and not page.isdecimal():
        raise MisuseError(f"--page {shown(page)} is not a page of the audit log: give the last value of `next`")
    before_id = int(page) if page else None
    query = AuditQuery(since=since, who=who, action=action, target=target, limit=limit, before_id=before_id)
    found = ask_broker(broker, AuditService.list, query)
    if as_json:
        click.echo(json_text(asdict(found)))
    elif found.entries:
        print_rows(
            {
                "entry": each.id,
                "at": each.at,
                "who": each.who,
                "from": each.address,
                "action": each.action,
                "target": each.target,
                "before": _in_words(each.before),
                "after": _in_words(each.after),
            }
            for each in found.entries
        )
        if found.next is not None:
            say(f"more: --page {found.next}")
    else:
        say("the audit log has no such entry")


def _in_words(state: Mapping[str, Any] | None) -> str | None:
    return None if state is None else " ".join(f"{name}={json.dumps(value)}" for name, value in state.items())
