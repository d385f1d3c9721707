"""`txmsg tables`: the tables of a business database, for its DBA. The output comes from txmsg.client.business_sql."""

from __future__ import annotations

import click
from sqlalchemy import Dialect, Engine

from txmsg.checker.tables import REVISION, changes_sql, fence_identity_table, refuse_old_tables, revision_of
from txmsg.client.business_sql import DIALECTS, PURGING, RUNNING, all_tables_sql, rights_sql, role_sql
from txmsg.errors import MisuseError, StorageError
from txmsg.ops.cli.business import database_option, with_engine
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import json_text

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
@click.option(
    "--from-revision", "since", metavar="REVISION", help="Print what upgrades tables of this revision instead."
)
@json_option
def sql(*, name: str, role: str | None, purge_role: str | None, since: str | None, as_json: bool) -> None:
    """Print the SQL that makes the tables, and gives roles what they need. It connects to no database.

    Without --role the rights are comments. In PostgreSQL and SQLite tables that exist are kept; in MySQL run it once.
    `txmsg tables check` says which revision to give to --from-revision.
    """
    if name == "sqlite" and (role or purge_role):
        raise click.UsageError("SQLite has no roles: who may write its file may do everything; leave out --role")
    for option, given in (("--role", role), ("--purge-role", purge_role)):
        if given is not None and (not given or not given.isprintable()):
            raise click.UsageError(f"{option} {given!r} is not the name of a role: give one of printable characters")
    dialect = DIALECTS[name]()
    try:
        made = list(all_tables_sql(dialect)) if since is None else changes_sql(name, since=since)
    except MisuseError as exc:
        raise click.BadParameter(str(exc), param_hint="--from-revision") from exc
    running, purging = (
        [] if name == "sqlite" else list(rights_sql(rights, _written(given, dialect), dialect))
        for rights, given in ((RUNNING, role), (PURGING, purge_role or role))
    )
    if as_json:
        click.echo(json_text({"tables": made, "rights": running, "purge_rights": purging}))
        return
    if since is None:
        click.echo(f"-- The tables of txmsg in a business database, for {_NAMES[name]}: revision {REVISION}.")
    else:
        what = f"from revision {since} to {REVISION}" if made else f"revision {since} is the newest: nothing to do"
        click.echo(f"-- The tables of txmsg for {_NAMES[name]}: {what}.")
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


@tables.command(
    short_help="Say whether the tables are those of this release.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tables check --database postgresql+psycopg://shop@db/shop",
)
@database_option
@json_option
def check(*, database: str, as_json: bool) -> None:
    """Say the revision of the tables in a business database.

    It fails, and says what to run, if this release needs a newer one. Tables of a newer revision are fine.
    """

    def look(engine: Engine) -> str | None:
        with engine.connect() as connection:
            if not connection.dialect.has_table(connection, fence_identity_table.name):
                raise StorageError(
                    f"{engine.url} has no tables of txmsg: have their owner run what `txmsg tables sql` prints"
                )
            refuse_old_tables(connection)
            return revision_of(connection)

    found = with_engine(database, look)
    if as_json:
        click.echo(json_text({"revision": found, "newest": REVISION}))
    elif found is None:
        click.echo(
            "txmsg's tables have no identity yet, which an application writes when it first starts with them, with the "
            f"revision of its release; this release works with {REVISION}"
        )
    else:
        click.echo(f"txmsg's tables have revision {found}; this release works with {REVISION}")


def _written(role: str | None, dialect: Dialect) -> str:
    return "ROLE" if role is None else role_sql(role, dialect)
