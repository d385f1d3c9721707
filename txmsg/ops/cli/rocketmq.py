"""`txmsg rocketmq`: a gateway for RocketMQ's official clients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from txmsg.ops.cli.connections import token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import print_address
from txmsg.ops.cli.settings import read_settings, settings_options, take_again
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.server import serve
from txmsg.runtime import loops
from txmsg.runtime.logs import name_process
from txmsg.runtime.signals import call_on_hangup, stop_on_signals
from txmsg.settings.live import GivenSettings

_ALLOCATIONS_PER_COLLECTION = 20_000
"""Replaces the default 700: collections took a tenth of a busy gateway's time, though calls leave few cycles."""


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg rocketmq --broker 10.0.0.1:7700,10.0.0.2:7700\n\n"
    "Prints `listening on HOST:PORT` when it is ready: this is what clients are given as endpoints. As many of them as "
    "are needed run side by side. SIGTERM and Ctrl-C stop it gracefully. `txmsg config explain rocketmq` lists all "
    "settings."
)
@settings_options(GatewayConfig, "rocketmq")
@token_file_option
@json_option
def rocketmq(*, config: Path | None, as_json: bool, **options: object) -> None:
    """Run a gateway for the official clients of RocketMQ 5: Java, Go, Node, Rust, Python."""
    settings = read_settings(GatewayConfig, "rocketmq", config, options)
    given = GivenSettings(settings.make(), settings.sources())
    name_process("rocketmq")
    # For the whole process, which serves nothing but the gateway.
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    loops.run(_serve(given, partial(take_again, given, "rocketmq", config, options), as_json=as_json))


async def _serve(given: GivenSettings[GatewayConfig], read_again: Callable[[], None], *, as_json: bool) -> None:
    call_on_hangup(read_again)
    await serve(given, partial(print_address, as_json=as_json), stop_on_signals())
