"""`txmsg up`: the embedded database, a broker, MetaQ and the tailer between them, for development."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NoReturn

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.parts import Part, PartEnded

__all__ = ["up"]

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
"""For all parts together; then they are killed."""


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg up\n"
    "  txmsg up --data-dir /tmp/try --listen 127.0.0.1:0 --metaq-listen 127.0.0.1:0 --json\n\n"
    "Prints the addresses when all are ready, and then only what goes wrong. Ctrl-C and SIGTERM stop all in order: the "
    "broker, the tailer, MetaQ, the database. When one of them ends by itself it is named, the others are stopped, and "
    "the exit status is 1: nothing is restarted without a word."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7700",
    show_default=True,
    help="Where the broker serves. Port 0 takes a free one.",
)
@click.option(
    "--metaq-listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7720",
    show_default=True,
    help="Where MetaQ serves. Port 0 takes a free one.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where everything is kept: the database in DIR/pg, the log in DIR/metaq. Default: the user's data directory.",
)
@json_option
def up(*, listen: str, metaq_listen: str, data_dir: Path | None, as_json: bool) -> None:
    """Run a database, a broker, MetaQ and a tailer between them, until Ctrl-C: all that development needs."""
    from txmsg.broker import migrate
    from txmsg.embedded import EmbeddedPostgres, default_data_dir

    root = (data_dir or default_data_dir()).expanduser().resolve()
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(root / "pg"))
        storage = postgres.create_database("txmsg")
        migrate.upgrade(storage)
        together = _Together(storage, root / "metaq", listen, metaq_listen)
        problem = asyncio.run(together.run(as_json=as_json))
    if problem is not None:
        raise click.ClickException(problem)


class _Together:
    """The parts, and the order in which they start and stop."""

    def __init__(self, storage: str, log: Path, listen: str, metaq_listen: str) -> None:
        self._storage = storage
        self._quiet = ("--log-level", "warning", "--json")
        self._log = log
        self._broker = self._part("broker", "broker", "--storage", storage, "--listen", listen)
        self._metaq = self._part("metaq", "metaq", "serve", "--data-dir", str(log), "--listen", metaq_listen)
        self._tailer: Part | None = None

    def _part(self, name: str, *command: str) -> Part:
        return Part(name, *command, *self._quiet, trouble=_show)

    async def run(self, *, as_json: bool) -> str | None:
        """Runs until it is told to stop, or a part ends: what is wrong, or None."""
        loop = asyncio.get_running_loop()
        working = asyncio.create_task(self._work(as_json=as_json))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, working.cancel)
        problem: str | None = None
        try:
            await working
        except PartEnded as exc:
            problem = str(exc)
        except asyncio.CancelledError:
            pass  # by a signal
        slow = await self._stop_all()
        return problem or slow

    async def _work(self, *, as_json: bool) -> NoReturn:
        """Starts all, tells where they are, and waits. Raises PartEnded for the first part that ends."""
        broker, metaq = await asyncio.gather(self._broker.start(START_S_MAX), self._metaq.start(START_S_MAX))
        self._tailer = self._part("tailer", "tailer", "run", "--storage", self._storage, "--metaq", metaq["listening"])
        await self._tailer.start(START_S_MAX)
        facts = {
            "broker": broker["listening"],
            "metaq": metaq["listening"],
            "storage": self._storage,
            "log": str(self._log),
        }
        if as_json:
            click.echo(json.dumps(facts))
        else:
            for name, value in facts.items():
                click.echo(f"{name:8} {value}")
            click.echo("ready; Ctrl-C stops all of them")
        sys.stdout.flush()
        parts = (self._broker, self._metaq, self._tailer)
        ends = {asyncio.create_task(part.ended()): part.name for part in parts}
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        raise PartEnded("; ".join(f"{ends[each]} ended by itself, {each.result()}" for each in done))

    async def _stop_all(self) -> str | None:
        """Senders first, then who passes on, then who keeps; names those that had to be killed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S_MAX
        parts = [part for part in (self._broker, self._tailer, self._metaq) if part is not None]
        slow = [part.name for part in parts if not await part.stop(max(0.1, deadline - loop.time()))]
        return f"{', '.join(slow)} did not end within {STOP_S_MAX:g} s, and was killed" if slow else None


def _show(name: str, line: str) -> None:
    click.echo(f"{name:8} {line}", err=True)
