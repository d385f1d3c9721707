"""`txmsg user access-key`: credentials for clients that sign their calls, as RocketMQ's do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import click

from txmsg.administration.access import AccessService, Revoke, add_access_key, user_of
from txmsg.administration.ask import AskBroker
from txmsg.ops.cli.connections import database_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import Decorator, json_option, table_options
from txmsg.ops.cli.output import json_text, print_facts, print_rows, say
from txmsg.wire.access.keys import KeyFile, known_access_key, new_access_key

_key_file: Decorator = click.option(
    "--access-key-file",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The key file of the gateways, which encrypts the secret.",
)


@click.group("access-key", short_help="Give users access keys, for RocketMQ clients.")
def access_key() -> None:
    """Manage access keys of users, for RocketMQ's clients at a gateway (`txmsg rocketmq`).

    Their secrets are stored encrypted, with a key file that gateways have and the Notify database does not.
    """


@access_key.command(
    short_help="Make the file that encrypts secrets.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user access-key file access-keys.key",
)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def file(*, path: Path, as_json: bool) -> None:
    """Create a key file, which only you can read, for gateways and for `create`."""
    KeyFile.make(path)
    if as_json:
        click.echo(json_text({"file": str(path)}))
        return
    say(f"{path} is made: give it to gateways by --access-key-file, and keep it out of backups of the Notify database")


@access_key.command(
    short_help="Make an access key, and print it with its secret.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user access-key create shop --access-key-file access-keys.key",
)
@click.argument("name", metavar="USER")
@_key_file
@database_option
@json_option
def create(*, name: str, path: Path, ask: AskBroker, as_json: bool) -> None:
    """Create an access key, and print it with its secret, only this once.

    A user has at most two, so that clients can change over. Revoke the old one afterwards.
    """
    key = new_access_key()
    add_access_key(ask, name, key, KeyFile(path))
    told = {"access_key": key.id, "secret": key.secret}
    if as_json:
        click.echo(json_text({"user": name, **told}))
        return
    say(f"user {name} has a new access key; its secret is not shown again:", err=True)
    print_facts(told)


@access_key.command(
    "import",
    short_help="Keep an access key that clients have already.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user access-key import shop LTAI5tQ2 "
    "\\\n      --access-key-file access-keys.key < secret",
)
@click.argument("name", metavar="USER")
@click.argument("key_id", metavar="ID")
@_key_file
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.File(encoding="ascii", errors="replace"),
    default="-",
    help="File with the secret, which may end with a newline. Default: standard input; on a terminal the secret is "
    "prompted for and not echoed.",
)
@database_option
@json_option
def import_(*, name: str, key_id: str, path: Path, secret_file: TextIO, ask: AskBroker, as_json: bool) -> None:
    """Import an access key that clients already have, with its secret, so that they need not change.

    No other user may have the ID. The secret is never an argument, because other processes could read it.
    """
    key = known_access_key(key_id, _read_secret(secret_file, key_id))
    user = add_access_key(ask, name, key, KeyFile(path))
    if as_json:
        click.echo(json_text({"user": name, "access_key": key.id}))
        return
    say(f"user {name} has access key {key.id}, and {len(user.access_keys)} in all")


def _read_secret(file: TextIO, key_id: str) -> str:
    if file.isatty():  # on which a line that is read would stay in view
        asked: str = click.prompt(f"Secret of access key {key_id}", hide_input=True, err=True)
        return asked
    return file.read().removesuffix("\n").removesuffix("\r")


@access_key.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg user access-key list shop")
@click.argument("name", metavar="USER")
@database_option
@json_option
@table_options
def list_(*, name: str, ask: AskBroker, as_json: bool) -> None:
    """List the access keys of a user, without their secrets."""
    found = [asdict(key) for key in user_of(ask, name).access_keys]
    if as_json:
        click.echo(json_text({"access_keys": found}))
    elif found:
        print_rows({"access_key": key["id"], "created_at": key["created_at"]} for key in found)
    else:
        click.echo(f"user {name} has no access keys")


@access_key.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user access-key revoke shop k2zq5h7a4mv3xw2c")
@click.argument("name", metavar="USER")
@click.argument("key_id", metavar="ID")
@database_option
@json_option
def revoke(*, name: str, key_id: str, ask: AskBroker, as_json: bool) -> None:
    """Revoke an access key. Gateways refuse it within 2 s, and end waiting calls."""
    if not key_id:
        raise click.UsageError("the ID of an access key is not empty: `txmsg user access-key list` shows it")
    found = ask(AccessService.revoke, Revoke(name=name, access_key=key_id))
    if as_json:
        click.echo(json_text(asdict(found)))
    else:
        say(f"access key {key_id} is revoked; user {name} has {len(found.access_keys)} left")
