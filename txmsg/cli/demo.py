"""`txmsg demo`: the examples, run with real processes and crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from txmsg.cli import demo_registration, demo_trades
from txmsg.cli.main import EXAMPLE_FORMAT

__all__ = ["demo"]

DATABASES = dict.fromkeys((*demo_registration.DATABASES, *demo_trades.DATABASES))


@click.group()
def demo() -> None:
    """Run an example with real processes on an embedded database."""


demo.add_command(demo_registration.registration)
demo.add_command(demo_trades.trades)


@demo.command(
    short_help="Open psql on a database of a kept demo.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo connect /tmp/demo users",
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("database", type=click.Choice(list(DATABASES)), default="users")
def connect(directory: Path, database: str) -> None:
    """Open psql on a DATABASE that a demo kept with `--keep DIRECTORY`. Stops the server at the end."""
    from txmsg.embedded import EmbeddedPostgres, binaries_dir

    with EmbeddedPostgres(directory / "postgres") as postgres:
        sys.exit(subprocess.run([binaries_dir() / "psql", postgres.url(database)], check=False).returncode)
