"""`txmsg db`: a Notify database, for the operator. Its output comes from txmsg.broker.migrate and findings."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from txmsg.broker import migrate
from txmsg.broker.findings import FindingsRow
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, storage_option


@click.group()
def db() -> None:
    """Manage the schema of a Notify database.

    Not needed for the embedded database, which the broker upgrades itself.
    """


@db.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg db upgrade --storage postgresql://notify@db/notify")
@storage_option
@json_option
def upgrade(*, storage: str, as_json: bool) -> None:
    """Create or upgrade the tables. Idempotent, and safe while brokers run."""
    revision = migrate.upgrade(storage)
    click.echo(json.dumps({"revision": revision}) if as_json else f"the database is at revision {revision}")


@db.command(
    short_help="Check version, settings, rights, standbys, revision and schema.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg db check --storage postgresql://notify@db/notify",
)
@storage_option
@json_option
def check(*, storage: str, as_json: bool) -> None:
    """Check version, settings, rights, standbys, revision and schema. Exit status 1 on a problem.

    It only reads, so it also works on a hot standby.
    """
    findings = migrate.check(storage)
    ok = all(finding.ok for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": ok, "findings": [_told(row) for row in findings]}))
    else:
        table = Table("", "What", "Is", "To do", box=None)
        for finding in findings:
            table.add_row("ok" if finding.ok else "!", finding.name, finding.value, finding.fix or finding.note)
        Console(highlight=False).print(table)
    sys.exit(0 if ok else 1)


def _told(row: FindingsRow) -> dict[str, str]:
    return {"name": row.name, "value": row.value, "fix": row.fix, "note": row.note}
