"""`txmsg metaq serve`: a log for other machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option
from txmsg.cli.output import print_address
from txmsg.cli.settings import read_settings, settings_options, take_again
from txmsg.logs import name_process
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.server.server import serve as run
from txmsg.runtime import loops
from txmsg.runtime.signals import call_on_hangup, stop_on_signals
from txmsg.settings.live import Given


@click.command(
    short_help="Serve a log over the network.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq serve --data-dir /var/lib/metaq --listen 0.0.0.0:7720 "
    "--access users.toml \\\n      --tls-cert server.pem --tls-key server.key\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C stop it gracefully: pending appends are "
    "answered, and group members release their queues. SIGHUP has it read its file again. `txmsg config explain metaq` "
    "lists all settings.",
)
@settings_options(MetaQConfig, "metaq")
@json_option
def serve(*, config: Path | None, as_json: bool, **options: object) -> None:
    """Serve a log over the network: appends, reads, and consumer groups."""
    settings = read_settings(MetaQConfig, "metaq", config, options)
    given = Given(settings.make(), settings.sources())
    name_process(f"metaq {given.config.data_dir}")
    loops.run(_serve(given, partial(take_again, given, "metaq", config, options), as_json=as_json))


async def _serve(given: Given[MetaQConfig], read_again: Callable[[], None], *, as_json: bool) -> None:
    call_on_hangup(read_again)
    await run(given, partial(print_address, as_json=as_json), stop_on_signals())
