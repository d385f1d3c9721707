"""`txmsg rocketmq`: a gateway for RocketMQ's official clients."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import click

from txmsg.cli.connections import token_file_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import duration, json_option, log_format_option
from txmsg.cli.output import print_address
from txmsg.logs import log_to_stderr, name_process
from txmsg.rocketmq.server import GatewayConfig, serve
from txmsg.runtime import loops
from txmsg.runtime.signals import stop_on_signals
from txmsg.settings.common import TlsConfig
from txmsg.wire.address import check_address

_ALLOCATIONS_PER_COLLECTION = 20_000
"""Instead of 700. Collections took a tenth of a busy gateway's time, though calls leave little in cycles."""


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg rocketmq --broker 10.0.0.1:7700,10.0.0.2:7700\n\n"
    "Prints `listening on HOST:PORT` when it is ready: this is what clients are given as endpoints. As many of them as "
    "are needed run side by side."
)
@click.option(
    "--broker",
    "brokers",
    metavar="HOST:PORT[,HOST:PORT]...",
    envvar="TXMSG_BROKER",
    show_envvar=True,
    default="localhost:7700",
    show_default=True,
    help="Brokers of the Notify database.",
)
@token_file_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="Where clients find it. Port 0 picks a free port.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Its certificate: clients use TLS. Read again when it changes.",
)
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The key of the certificate.")
@click.option(
    "--tls-client-ca",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Authorities: only clients with a certificate of one of them get in.",
)
@click.option(
    "--access-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Clients sign their calls by access keys of users, and may do what rules allow these. It is the file that "
    "`txmsg user access-key create` was given; brokers need --auth.",
)
@click.option(
    "--signature-window",
    "signature_window_s",
    metavar="DURATION",
    type=duration,
    default="15h",
    show_default=True,
    help="How far the date of a signature may be from now. Clients give their local time as UTC: 15m does where the "
    "clocks of all of them are set to UTC.",
)
@click.option(
    "--insecure", is_flag=True, help="Listens where other machines reach it, though its clients do not log in."
)
@log_format_option
@json_option
def rocketmq(
    *,
    brokers: str,
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    access_key_file: Path | None,
    signature_window_s: float,
    insecure: bool,
    log_format: str | None,
    as_json: bool,
) -> None:
    """Let the official clients of RocketMQ 5 send and receive: Java, Go, Node, Rust, Python."""
    config = GatewayConfig(
        brokers=[check_address("--broker", each) for each in brokers.split(",")],
        listen=listen,
        tls=TlsConfig(cert=tls_cert, key=tls_key, client_ca=tls_client_ca),
        access_key_file=access_key_file,
        signature_window_s=signature_window_s,
        insecure=insecure,
    )
    log_to_stderr("warning", log_format or "text")
    name_process("rocketmq")
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    loops.run(_serve(config, as_json=as_json))


async def _serve(config: GatewayConfig, *, as_json: bool) -> None:
    await serve(config, partial(print_address, as_json=as_json), stop_on_signals())
