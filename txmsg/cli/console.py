"""`txmsg console`: web pages for operators."""

from __future__ import annotations

from functools import partial

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option, log_format_option
from txmsg.cli.output import print_address
from txmsg.console.server import ConsoleConfig, serve
from txmsg.errors import MisuseError
from txmsg.logs import log_to_stderr, name_process
from txmsg.runtime import loops
from txmsg.runtime.signals import stop_on_signals
from txmsg.wire.address import check_address

_RESERVED = {"assets", "uplot", "operations", "preferences"}


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg console\n"
    "  txmsg console --broker orders=10.0.0.1:7700,10.0.0.2:7700 --broker trades=10.0.1.1:7700 --log 10.0.2.1:7720\n\n"
    "Prints `listening on HOST:PORT` when it is ready: open http://HOST:PORT. There is no authentication, so it "
    "listens on this machine only; from elsewhere use `ssh -L 7790:127.0.0.1:7790`."
)
@click.option(
    "--broker",
    "brokers",
    metavar="[NAME=]HOST:PORT[,HOST:PORT]...",
    envvar="TXMSG_BROKER",
    show_envvar=True,
    multiple=True,
    default=("localhost:7700",),
    show_default=True,
    help="Brokers of a Notify database, which the console shows as NAME. May be repeated for several databases.",
)
@click.option(
    "--log",
    "logs",
    metavar="[NAME=]LOG",
    multiple=True,
    help="A MetaQ log: its directory, or the address of its server. May be repeated.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7790",
    show_default=True,
    help="Where browsers find it: an address of this machine only. Port 0 picks a free port.",
)
@log_format_option
@json_option
def console(
    *, brokers: tuple[str, ...], logs: tuple[str, ...], listen: str, log_format: str | None, as_json: bool
) -> None:
    """Show brokers, topics, groups, dead letters and settings in a browser, live, and act on them."""
    databases = {
        name: [check_address("--broker", each) for each in text.split(",")]
        for name, text in _named("--broker", brokers, "notify").items()
    }
    config = ConsoleConfig(databases=databases, logs=_named("--log", logs, "metaq"), listen=listen)
    if logs:
        import txmsg.metaq.location  # noqa: F401 - what is not installed is told before anything is served
    log_to_stderr("warning", log_format or "text")
    name_process("console")
    loops.run(_serve(config, as_json=as_json))


async def _serve(config: ConsoleConfig, *, as_json: bool) -> None:
    await serve(config, partial(print_address, as_json=as_json), stop_on_signals())


def _named(option: str, given: tuple[str, ...], default: str) -> dict[str, str]:
    """What was given by name; without one it has the name `default`, and a number from the second on."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = default if default not in found else f"{default}-{len(found) + 1}", text
        name = name.strip()
        if not name or "/" in name or name in _RESERVED or not name.isprintable():
            raise MisuseError(f"{option} {text}: {name!r} cannot be a name in the console: choose another one")
        if name in found:
            raise MisuseError(f"{option}: the name {name} is given twice")
        found[name] = value.strip()
    return found
