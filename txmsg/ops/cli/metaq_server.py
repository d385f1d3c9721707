"""`txmsg metaq serve`: a log for other machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click

from txmsg.metaq.copy.promotion import promote as promote_copy
from txmsg.metaq.server.server import serve as run
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import print_address, print_facts
from txmsg.ops.cli.settings import read_settings, settings_options, take_again
from txmsg.runtime import loops
from txmsg.runtime.logs import name_process
from txmsg.runtime.signals import call_on_hangup, stop_on_signals
from txmsg.settings.live import GivenSettings


@click.command(
    short_help="Serve a log over the network.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq serve --data-dir /var/lib/metaq --listen 0.0.0.0:7720 "
    "\\\n      --access users.toml --tls-cert server.pem --tls-key server.key\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C stop it gracefully: pending appends are "
    "answered, and group members release their queues. SIGHUP has it read its file again. `txmsg config explain metaq` "
    "lists all settings.",
)
@settings_options(MetaQConfig, "metaq")
@json_option
def serve(*, config: Path | None, as_json: bool, **options: object) -> None:
    """Serve a log over the network: appends, reads, and consumer groups."""
    _run(config, options, as_json=as_json)


@click.command(
    short_help="Keep a copy of a server's log.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq follow metaq-1:7720 --data-dir /var/lib/metaq-copy \\\n      --listen 0.0.0.0:7720\n\n"
    "Prints `listening on HOST:PORT` when the copy can be read; groups are at the leader. With TXMSG_TOKEN_FILE and "
    "TXMSG_TLS_CA it is a client of a leader that has users and TLS; its user may `read cluster`, and `administer "
    "cluster` for `txmsg metaq promote`.",
)
@click.argument("server")
@settings_options(MetaQConfig, "metaq")
@json_option
def follow(*, server: str, config: Path | None, as_json: bool, **options: object) -> None:
    """Keep a byte-for-byte copy of the log of SERVER, and serve it for reading.

    An empty or missing directory starts a new copy; an existing copy continues. A former leader of the log continues as
    a copy if SERVER has all of its messages.
    """
    _run(config, options, as_json=as_json, follow=server)


@click.command(
    short_help="Make a copy of a log the leader.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq promote /var/lib/metaq-copy\n  txmsg metaq promote /var/lib/metaq-copy --leader-is-lost\n\n"
    "Stop the copy's process first. Then `txmsg metaq serve --data-dir DIR` serves the log. docs/how-to/copy-a-log.md "
    "explains what may be lost, and how a former leader follows.",
)
@click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True, readable=False)
)
@click.option("--leader-is-lost", is_flag=True, help="Do not contact the leader: messages that only it has are lost.")
@json_option
def promote(*, directory: Path, leader_is_lost: bool, as_json: bool) -> None:
    """Make the copy in DIR the leader of its log, under a later generation.

    Makes the leader refuse appends, and copies the missing part: nothing is lost.
    """
    promoted = promote_copy(directory, leader_is_lost=leader_is_lost)
    facts = {
        "log": str(directory),
        "generation": promoted.generation,
        "position": promoted.position,
        "complete": promoted.is_complete,
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        print_facts(facts)


def _run(config: Path | None, options: Mapping[str, object], *, as_json: bool, **others: object) -> None:
    settings = read_settings(MetaQConfig, "metaq", config, options)
    given = GivenSettings(settings.make(**others), settings.sources())
    name_process(f"metaq {given.config.data_dir}")
    loops.run(_serve(given, partial(take_again, given, "metaq", config, options), as_json=as_json))


async def _serve(given: GivenSettings[MetaQConfig], read_again: Callable[[], None], *, as_json: bool) -> None:
    call_on_hangup(read_again)
    await run(given, partial(print_address, as_json=as_json), stop_on_signals())
