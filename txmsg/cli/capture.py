"""`txmsg capture`: what clients and a server say to each other, frame by frame."""

from __future__ import annotations

import asyncio

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.errors import MisuseError
from txmsg.runtime import loops
from txmsg.runtime.signals import stop_on_signals
from txmsg.wire.address import UNIX, check_address, host_and_port
from txmsg.wire.capture import Capture
from txmsg.wire.listening import loopback


@click.command(
    short_help="Print what goes over the wire.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg capture --listen 127.0.0.1:7777 --server localhost:7700\n\n"
    "Then name 127.0.0.1:7777 as the broker of a client, or as --broker of a command. Clients also connect to the "
    "addresses that the broker names; run it with --advertise 127.0.0.1:7777 to have them come here. Bodies are "
    "printed, too: mind who reads them.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=f"{loopback()}:7777",
    show_default=True,
    help="Address to which clients connect (port 0 picks a free port).",
)
@click.option("--server", metavar="ADDRESS", required=True, help="The broker or MetaQ server: HOST:PORT, or unix:PATH.")
@click.option(
    "--length",
    type=click.IntRange(min=0),
    default=400,
    show_default=True,
    help="Characters of each message that are printed.",
)
def capture(*, listen: str, server: str, length: int) -> None:
    """Relay connections to a server, and print each frame in both directions.

    Each line has the time (UTC), the number of the connection, the direction (>> from the client), the kind of the
    frame, the number of the call, the size, and the message in protobuf's text format.
    """
    target = server if server.startswith(UNIX) else check_address("--server", server)
    loops.run(_capture(check_address("--listen", listen), target, length))


async def _capture(listen: str, target: str, length: int) -> None:
    host, port = host_and_port(listen)
    relay = Capture(target, click.echo, length_max=length).relay
    try:
        server = await asyncio.start_server(relay, host, port)
    except OSError as exc:
        raise MisuseError(
            f"cannot listen on {listen} ({exc.strerror or exc}): give another --listen HOST:PORT"
        ) from exc
    async with server:
        click.echo(f"listening on {host}:{server.sockets[0].getsockname()[1]}, relaying to {target}")
        await stop_on_signals().wait()
