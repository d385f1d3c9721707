"""`txmsg doctor`: problems and risks of a running set. The checks are those of txmsg.ops.doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from click.core import ParameterSource

from txmsg.checks.check import CRITICAL, Finding
from txmsg.errors import printable
from txmsg.ops.cli.connections import asker, broker_option, kafka_config_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.doctor import brokers, database


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg doctor\n"
    "  txmsg doctor --storage postgresql://notify@db/notify \\\n      --log /var/lib/metaq --json\n\n"
    "Changes nothing. Exit status 1 if there is a problem; warnings alone are 0. docs/alerts.md lists the checks."
)
@click.option(
    "--storage",
    metavar="URL",
    envvar="TXMSG_STORAGE",
    show_envvar=True,
    help="The Notify database; also checks its server, tables, slots and mirrors.",
)
@broker_option
@click.option(
    "--log",
    metavar="LOG",
    help="A MetaQ log to check: its directory, the address of its server, or kafka://HOST:PORT.",
)
@kafka_config_option
@json_option
@click.pass_context
def doctor(context: click.Context, *, storage: str | None, broker: str, log: str | None, as_json: bool) -> None:
    """Check a running installation from outside, and report problems, risks, and the commands that fix them.

    Without --broker, a broker that the database knows is used.
    """
    is_default = context.get_parameter_source("broker") is ParameterSource.DEFAULT
    found = list(_probe_all(storage, None if is_default and storage else broker, log))
    if as_json:
        click.echo(json.dumps({"findings": [_told(each) for each in found]}))
    else:
        _print(found)
    if any(each.severity is CRITICAL for each in found):
        raise SystemExit(1)


def _probe_all(storage: str | None, broker: str | None, log: str | None) -> Iterator[Finding]:
    if storage is not None:
        found = list(database.probe_database(storage))
        yield from found
        if broker is None and not database.is_missing(found):
            broker = database.address_of_a_broker(storage)  # None: the database's checks have told it
    if broker is not None:
        yield from brokers.probe_brokers(asker, broker)
    if log is not None:
        from txmsg.ops.doctor import log as logs  # with txmsg[metaq] only

        yield from logs.probe_log(log)


def _word(found: Finding) -> str:
    return "problem" if found.severity is CRITICAL else found.severity.value


def _told(found: Finding) -> dict[str, str]:
    words = {"what": found.what, "why": found.why, "fix": found.fix}
    return {"check": found.check.name, "severity": _word(found), **words}


def _print(found: list[Finding]) -> None:
    for each in found:
        colour = "red" if each.severity is CRITICAL else "yellow"
        click.secho(f"{_word(each).upper():8}", fg=colour, nl=False)
        click.echo(f" {each.check.name}: {printable(each.what)}")
        click.echo(f"         {printable(each.why)}")
        click.echo(f"         to do: {printable(each.fix)}\n")
    problems = sum(each.severity is CRITICAL for each in found)
    counted = f"problems: {problems}, warnings: {len(found) - problems}"
    click.echo(counted if found else "nothing is wrong")
