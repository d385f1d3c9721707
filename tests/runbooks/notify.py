"""A Notify database on its own machine, and a mirror of it, as the run-books expect."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import psycopg
from click.testing import CliRunner

from tests.runbooks.machine import Machine
from txmsg.broker import migrate
from txmsg.ops.cli.main import main

DATABASE = "notify"


def create_notify(machine: Machine) -> None:
    """Create a server with a Notify database."""
    machine.create()
    with psycopg.connect(machine.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute(f"create database {DATABASE}")
    migrate.upgrade(machine.url(DATABASE))


def whichever_takes_writes(machines: Iterable[Machine]) -> str:
    """Return the URL that names all servers."""
    ports = [str(machine.port) for machine in machines]
    hosts = quote(",".join(["127.0.0.1"] * len(ports)))
    return (
        f"postgresql://postgres@/{DATABASE}?host={hosts}&port={quote(','.join(ports))}&target_session_attrs=read-write"
    )


def is_mirrored(storage: str, log: Path) -> bool:
    """Return True if the log equals the table, by `txmsg tailer verify`."""
    return CliRunner().invoke(main, ["tailer", "verify", "--storage", storage, "--metaq", str(log)]).exit_code == 0
