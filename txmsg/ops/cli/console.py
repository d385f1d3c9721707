"""`txmsg console`: web pages for operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from click.types import StringParamType

from txmsg.errors import MisuseError
from txmsg.ops.cli.connections import kafka_config_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, log_format_option
from txmsg.ops.cli.output import print_address
from txmsg.ops.console.server import ConsoleConfig, serve
from txmsg.ops.page.options import web_tls_options
from txmsg.runtime import loops
from txmsg.runtime.logs import log_to_stderr, name_process
from txmsg.runtime.signals import stop_on_signals
from txmsg.settings.common import TlsConfig
from txmsg.wire.brokers import BROKERS_DEFAULT, BROKERS_VARIABLE, addresses_of
from txmsg.wire.listening import loopback

_RESERVED = {"assets", "login", "login.css", "logout", "operations", "preferences", "uplot"}


class _Brokers(StringParamType):
    """Addresses of brokers. Several in one variable are separated by semicolons, as for producers."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return rv.split(";")


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg console\n"
    "  txmsg console --broker orders=10.0.0.1:7700,10.0.0.2:7700 \\\n"
    "      --broker trades=10.0.1.1:7700 --log trades/metaq=10.0.2.1:7720\n\n"
    "Prints `listening on HOST:PORT` when it is ready: open http://HOST:PORT, or https:// with --tls-cert. Where "
    "brokers authenticate, it asks for a token, and does what its user may do. Beyond loopback it always asks."
)
@click.option(
    "--broker",
    "brokers",
    metavar="[NAME=]HOST:PORT[,HOST:PORT]...",
    envvar=BROKERS_VARIABLE,
    show_envvar=True,
    multiple=True,
    type=_Brokers(),
    default=(BROKERS_DEFAULT,),
    show_default=True,
    help="Brokers of a Notify database, which the console shows as NAME. Repeatable, for several databases.",
)
@click.option(
    "--log",
    "logs",
    metavar="[[DATABASE/]NAME=]LOG",
    multiple=True,
    help="A MetaQ log: its directory, the address of its server, or kafka://HOST:PORT. Repeatable. With several "
    "databases, each log names the database to whose users it is shown.",
)
@kafka_config_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=f"{loopback()}:7790",
    show_default=True,
    help="Address to listen on for browsers. Port 0 picks a free port.",
)
@web_tls_options
@log_format_option
@json_option
def console(
    *,
    brokers: tuple[str, ...],
    logs: tuple[str, ...],
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    insecure: bool,
    log_format: str | None,
    as_json: bool,
) -> None:
    """Show brokers, topics, groups, dead letters and settings in a browser, live, and act on them."""
    databases = {name: addresses_of(text) for name, text in _named("--broker", brokers, "notify").items()}
    config = ConsoleConfig(
        databases=databases,
        logs=_logs(logs, list(databases)),
        listen=listen,
        tls=TlsConfig(cert=tls_cert, key=tls_key, client_ca=tls_client_ca),
        insecure=insecure,
    )
    if logs:
        import txmsg.metaq.location  # noqa: F401 - what is not installed is told before anything is served
    log_to_stderr("warning", log_format or "text")
    name_process("console")
    loops.run(_serve(config, as_json=as_json))


async def _serve(config: ConsoleConfig, *, as_json: bool) -> None:
    await serve(config, partial(print_address, as_json=as_json), stop_on_signals())


def _logs(given: tuple[str, ...], databases: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return logs by their database. The server of a database's log gets the tokens of that database's
    visitors only.
    """
    of_database: dict[str, list[str]] = {name: [] for name in databases}
    for text in given:
        before, equals, where = text.partition("=")
        database, slash, name = before.partition("/") if equals else ("", "", "")
        if not slash and len(databases) == 1:
            database = databases[0]
        if database not in of_database:
            raise MisuseError(
                f"--log {text} names no database of {', '.join(databases)}: give DATABASE/NAME=LOG, since a log gets "
                "the tokens of its database's visitors"
            )
        of_database[database].append(f"{name}={where}" if slash else text)
    return {name: _named("--log", logs, "metaq") for name, logs in of_database.items()}


def _named(option: str, given: Sequence[str], default: str) -> dict[str, str]:
    """Return values by name; unnamed ones get the name `default`, with a number from the second on."""
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
