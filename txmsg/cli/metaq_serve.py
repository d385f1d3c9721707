"""`txmsg metaq serve`: a log for other machines."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.quantities import duration, size
from txmsg.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from txmsg.metaq.server.config import MetaQConfig

__all__ = ["serve"]


@click.command(
    short_help="Serve a log to other machines.",
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg metaq serve --data-dir /var/lib/metaq --listen 0.0.0.0:7720\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C end it in order: appends under way are "
    "carried out and answered, members of groups give their queues back.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The directory of the log; made when missing. This process is its one writer.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:7720",
    show_default=True,
    help="Where to serve: HOST:PORT (port 0 takes a free one), or unix:PATH.",
)
@click.option(
    "--retention",
    metavar="TIME",
    type=duration,
    help="How long messages are kept, in whole files of the log.  [default: for ever]",
)
@click.option(
    "--retention-size",
    metavar="SIZE",
    type=size,
    help="Size of the log past which its oldest files are deleted.  [default: no bound]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log on stderr.",
)
@json_option
def serve(
    *,
    data_dir: Path,
    listen: str,
    retention: float | None,
    retention_size: int | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve a log to other machines: appends, reads, and groups of consumers."""
    from txmsg.metaq.server.config import MetaQConfig
    from txmsg.metaq.store.log import LogConfig

    log_to_stderr(log_level)
    config = MetaQConfig(
        root=data_dir,
        listen=listen,
        log=LogConfig(retention_s=retention, retention_size_bytes=retention_size),
    )
    asyncio.run(_serve(config, as_json=as_json))


async def _serve(config: MetaQConfig, *, as_json: bool) -> None:
    from txmsg.metaq.server.running import serve as run

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)

    def tell(address: str) -> None:
        click.echo(json.dumps({"listening": address}) if as_json else f"listening on {address}")

    await run(config, tell, stop)
