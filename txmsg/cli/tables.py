"""`txmsg tables`: the tables of a business database, for its DBA. What it prints is in txmsg.client.business_sql."""

from __future__ import annotations

import click
from sqlalchemy import Dialect

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option
from txmsg.cli.output import json_text
from txmsg.client.business_sql import DIALECTS, PURGING, RUNNING, all_tables_sql, rights_sql, role_sql

_NAMES = {"postgresql": "PostgreSQL", "mysql": "MySQL or MariaDB", "sqlite": "SQLite"}


@click.group()
def tables() -> None:
    """Print the SQL of txmsg's tables in a business database.

    Applications that may create tables call `txmsg.create_tables` instead, which makes the same.
    """


@tables.command(
    short_help="Print the tables and the rights that roles need.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tables sql --dialect postgresql --role shop | psql shop",
)
@click.option("--dialect", "name", type=click.Choice(list(DIALECTS)), required=True, help="mysql: for MariaDB, too.")
@click.option("--role", metavar="NAME", help="The role of the application; of MySQL NAME or NAME@HOST.")
@click.option("--purge-role", metavar="NAME", help="The role that deletes old rows.  [default: the application's]")
@json_option
def sql(*, name: str, role: str | None, purge_role: str | None, as_json: bool) -> None:
    """Print the SQL that makes the tables, and gives roles what they need. It connects to no database.

    Without --role the rights are comments. In PostgreSQL and SQLite tables that exist are kept; in MySQL run it once.
    """
    if name == "sqlite" and (role or purge_role):
        raise click.UsageError("SQLite has no roles: who may write its file may do everything; leave out --role")
    for option, given in (("--role", role), ("--purge-role", purge_role)):
        if given is not None and (not given or not given.isprintable()):
            raise click.UsageError(f"{option} {given!r} is not the name of a role: give one of printable characters")
    dialect = DIALECTS[name]()
    made = list(all_tables_sql(dialect))
    running, purging = (
        [] if name == "sqlite" else list(rights_sql(rights, _written(given, dialect), dialect))
        for rights, given in ((RUNNING, role), (PURGING, purge_role or role))
    )
    if as_json:
        click.echo(json_text({"tables": made, "rights": running, "purge_rights": purging}))
        return
    click.echo(f"-- The tables of txmsg in a business database, for {_NAMES[name]}.")
    for statement in made:
        click.echo(f"\n{statement};")
    for title, statements, given in (
        ("What the role of the application needs.", running, role),
        ("What deletes old rows needs (`txmsg fence purge`, `purge_inbox`).", purging, purge_role or role),
    ):
        if statements:
            click.echo(f"\n-- {title}")
        for statement in statements:
            click.echo(f"{statement};" if given else f"-- {statement};")


def _written(role: str | None, dialect: Dialect) -> str:
    return "ROLE" if role is None else role_sql(role, dialect)
