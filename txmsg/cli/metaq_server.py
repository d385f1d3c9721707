"""`txmsg metaq serve`: a log for other machines."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import duration, http_listen_option, json_option, log_level_option, size
from txmsg.cli.output import print_address
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.server.server import serve as run
from txmsg.metaq.store.log import LogConfig
from txmsg.runtime import loops
from txmsg.runtime.logs import log_to_stderr
from txmsg.runtime.signals import stop_on_signals


@click.command(
    short_help="Serve a log over the network.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq serve --data-dir /var/lib/metaq --listen 0.0.0.0:7720\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C stop it gracefully: pending appends are "
    "answered, and group members release their queues.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the log; created if it is missing. This process is its only writer.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:7720",
    show_default=True,
    help="Address to listen on: HOST:PORT (port 0 picks a free port), or unix:PATH.",
)
@click.option(
    "--retention",
    metavar="TIME",
    type=duration,
    help="How long to keep messages; whole files are deleted.  [default: forever]",
)
@click.option(
    "--retention-size",
    metavar="SIZE",
    type=size,
    help="Size above which the oldest files are deleted.  [default: unlimited]",
)
@http_listen_option
@log_level_option
@json_option
def serve(
    *,
    data_dir: Path,
    listen: str,
    retention: float | None,
    retention_size: int | None,
    http_listen: str,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve a log over the network: appends, reads, and consumer groups."""
    log_to_stderr(log_level)
    config = MetaQConfig(
        root=data_dir,
        listen=listen,
        http_listen=http_listen,
        log=LogConfig(retention_s=retention, retention_size_bytes=retention_size),
    )
    loops.run(_serve(config, as_json=as_json))


async def _serve(config: MetaQConfig, *, as_json: bool) -> None:
    await run(config, partial(print_address, as_json=as_json), stop_on_signals())
