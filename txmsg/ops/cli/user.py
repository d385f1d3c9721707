"""`txmsg user`: users of brokers with authentication, and their tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from txmsg.administration.access import (
    AccessService,
    AlterUser,
    DeleteUser,
    IssuedToken,
    LimitUser,
    NewUser,
    Revoke,
    RotateToken,
    UserDetails,
    UserQuery,
    user_of,
)
from txmsg.administration.ask import AskBroker, Nothing
from txmsg.errors import MisuseError, printable
from txmsg.ops.cli.access_key import access_key
from txmsg.ops.cli.connections import ask_broker, broker_option, database_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import contains_option, duration, json_option, page_option, table_options, yes_option
from txmsg.ops.cli.output import json_text, print_facts, print_rows, say
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import require_own
from txmsg.wire.access.rules import ADMIN

_log = EventLog(__name__)
_expires_option = click.option(
    "--expires", metavar="DURATION", type=duration, help="How long the token is valid, such as 90d.  [default: always]"
)
_out_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the token to this file, which only you can read, instead of printing it.",
)
_roles_option = click.option(
    "--role", "roles", metavar="ROLE", multiple=True, help="A role of the user; `admin` may do everything. Repeatable."
)


def make_first_user(url: str, out: Path) -> None:
    """Create the user `admin` in a database without users, and write its token to a file.

    For the embedded database, whose URL only this process knows.
    """
    from txmsg.ops.cli.access import asker_of_storage  # with txmsg[broker] only

    require_own(out.parent, "the directory")
    ask = asker_of_storage(url)
    # Only in a database without users: on later starts the admin's token may have been revoked on purpose.
    is_first = not ask(AccessService.list_users, UserQuery(limit=1)).users
    begun = _new_file(out)
    if is_first or begun.exists():  # else who was stopped between making and writing its token would lock everybody out
        _check_out(out, replaces=True)
        # Marks a token that is about to be made. If the process dies before the token is in its file, the next start
        # finds the mark and rotates the token; otherwise no user could ever log in.
        begun.touch(mode=0o600)
        if is_first:
            issued = ask(AccessService.create_user, NewUser(name="admin", roles=[ADMIN]))
        else:
            issued = ask(AccessService.rotate_token, RotateToken(name="admin"))
        assert issued.token is not None
        _write_private(out, issued.token)
        _log.info("access.first_user", "the token of the first user, admin, is in %(path)s", path=out)


@click.group()
def user() -> None:
    """Create users, and rotate or revoke their tokens.

    Brokers started with --auth only admit users, who may do only what rules allow (`txmsg acl`).
    """


user.add_command(access_key)


@user.command(
    short_help="Create a user, and print its token.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user create shop --out shop.token\n"
    "  txmsg user create ops --role admin --storage postgresql://notify@db/notify",
)
@click.argument("name")
@_roles_option
@click.option("--certificate", metavar="NAME", help="The name in the user's client certificate, instead of a token.")
@_expires_option
@_out_option
@database_option
@json_option
def create(
    *,
    name: str,
    roles: Sequence[str],
    certificate: str | None,
    expires: float | None,
    out: Path | None,
    ask: AskBroker,
    as_json: bool,
) -> None:
    """Create a user, and print its token, only this once, because only a hash is stored."""
    if certificate and (expires is not None or out is not None):
        raise click.UsageError("a user with --certificate gets no token: leave out --expires and --out")
    _check_out(out)
    new = NewUser(name=name, roles=roles, certificate=certificate, expires_at=_expires_at(expires))
    _print_token(f"user {name} created", ask(AccessService.create_user, new), out, as_json=as_json)


@user.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg user list --json")
@click.option("--limit", type=click.IntRange(1, 1000), default=1000, show_default=True, help="Maximum number per page.")
@contains_option
@page_option
@database_option
@json_option
@table_options
def list_(*, limit: int, contains: str, page: str, ask: AskBroker, as_json: bool) -> None:
    """List users by name, with their roles."""
    found = ask(AccessService.list_users, UserQuery(limit=limit, after=page, contains=contains))
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    if not found.users:
        click.echo("no users" + (" match" if contains else ""))
        return
    print_rows(
        {
            "name": each.name,
            "roles": ", ".join(each.roles),
            "certificate": each.certificate,
            "tokens": len(each.tokens),
            "created_at": each.created_at,
        }
        for each in found.users
    )
    if found.next:
        say(f"only the first {limit}: go on with --page {found.next}", err=True)


@user.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user show shop")
@click.argument("name")
@database_option
@json_option
def show(*, name: str, ask: AskBroker, as_json: bool) -> None:
    """Show a user, and the ids and times of its tokens."""
    _print_user(user_of(ask, name), as_json=as_json)


@user.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user alter shop --role sender")
@click.argument("name")
@click.option("--role", "add_roles", metavar="ROLE", multiple=True, help="Add this role. Repeatable.")
@click.option("--no-role", "remove_roles", metavar="ROLE", multiple=True, help="Remove this role. Repeatable.")
@click.option("--certificate", metavar="NAME", help='The name in the user\'s client certificate; "" for none.')
@database_option
@json_option
def alter(
    *,
    name: str,
    add_roles: Sequence[str],
    remove_roles: Sequence[str],
    certificate: str | None,
    ask: AskBroker,
    as_json: bool,
) -> None:
    """Change roles and certificate of a user. Its connections continue, with the new rights."""
    if not add_roles and not remove_roles and certificate is None:
        raise click.UsageError("name what to change, such as --role")
    change = AlterUser(name=name, add_roles=add_roles, remove_roles=remove_roles, certificate=certificate)
    _print_user(ask(AccessService.alter_user, change), as_json=as_json)


@user.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user rotate shop --out shop.token")
@click.argument("name")
@_expires_option
@_out_option
@database_option
@json_option
def rotate(*, name: str, expires: float | None, out: Path | None, ask: AskBroker, as_json: bool) -> None:
    """Create another token, and print it, only this once.

    The previous one stays valid until it is revoked or until the next rotation, so that clients can change over.
    """
    _check_out(out, replaces=True)
    issued = ask(AccessService.rotate_token, RotateToken(name=name, expires_at=_expires_at(expires)))
    _print_token(f"user {name} has another token", issued, out, as_json=as_json)


@user.command(
    short_help="Take away what a user logs in with.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user revoke shop --token k2zq5h7a4mv3xw2c",
)
@click.argument("name")
@click.option("--token", metavar="ID", help="Only this token: the id that `txmsg user show` prints.")
@database_option
@json_option
def revoke(*, name: str, token: str | None, ask: AskBroker, as_json: bool) -> None:
    """Revoke all tokens, access keys and the certificate of a user, or one token.

    All brokers close its connections within 2 s.
    """
    found = ask(AccessService.revoke, Revoke(name=name, token=token))
    if as_json:
        click.echo(json_text(asdict(found)))
    else:
        say(f"user {name} has {len(found.tokens)} tokens left" + (f", {token} is revoked" if token else ""))


@user.command(
    short_help="Set what a user may take of each server, and create.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg user limit shop --connections 20 --messages 500",
)
@click.argument("name")
@click.option("--connections", type=click.IntRange(0), help="Maximum number of connections to a server.")
@click.option("--requests", "requests_per_s", type=click.FloatRange(0), help="Requests per second.")
@click.option("--messages", "messages_per_s", type=click.FloatRange(0), help="Messages sent per second.")
@click.option("--bytes", "in_flight_bytes", type=click.IntRange(0), help="Bytes of requests in progress.")
@click.option("--topics-max", "topics", type=click.IntRange(0), help="Maximum number of topics created by the user.")
@click.option(
    "--groups-max",
    "groups",
    type=click.IntRange(0),
    help="Maximum number of consumer groups created by the user.",
)
@click.option(
    "--default",
    "others_default",
    is_flag=True,
    help="Reset limits that are not given here to the defaults of the settings.",
)
@database_option
@json_option
def limit(*, name: str, others_default: bool, ask: AskBroker, as_json: bool, **limits: float | None) -> None:
    """Set limits of a user at each server, and of topics and groups that it creates. 0: no limit.

    Above a limit, the user's calls wait or are refused; other users are not affected. Users without their own limits
    have those of the settings `broker.user...` and `metaq.user...`.
    """
    given = {field: value for field, value in limits.items() if value is not None}
    if not given and not others_default:
        raise click.UsageError("name a limit, such as --connections, or --default")
    _print_user(
        ask(AccessService.limit_user, LimitUser(name=name, limits=given, others_default=others_default)),
        as_json=as_json,
    )


@user.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user delete shop")
@click.argument("name")
@database_option
@yes_option
@json_option
def delete(*, name: str, ask: AskBroker, yes: bool, as_json: bool) -> None:
    """Delete a user with its tokens and rules."""
    if not yes:
        user_of(ask, name)
        click.confirm(printable(f"delete user {name} with its tokens and rules?"), abort=True, err=as_json)
    ask(AccessService.delete_user, DeleteUser(name=name))
    click.echo(json_text({"user": name, "deleted": True}) if as_json else f"user {name} deleted")


@user.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg user whoami --token-file shop.token")
@broker_option
@json_option
def whoami(*, broker: str, as_json: bool) -> None:
    """Show the user that the broker has authenticated."""
    identity = ask_broker(broker, AccessService.who_am_i, Nothing())
    may = sorted({f"{rule.action} {rule.resource}" for rule in identity.rules})
    values = {**asdict(identity), "rules": may}
    if as_json:
        click.echo(json_text(values))
        return
    values |= {"roles": ", ".join(identity.roles) or None, "credential": identity.credential or None}
    print_facts({**values, "rules": ", ".join(may) or None})


def _expires_at(expires_s: float | None) -> datetime | None:
    return None if expires_s is None else datetime.now(UTC) + timedelta(seconds=expires_s)


def _check_out(out: Path | None, *, replaces: bool = False) -> None:
    """Check the file before the token is made, which could not be shown again. replaces: the file may exist."""
    if out is None:
        return
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise MisuseError(f"--out {out} is not a regular file: give the name of one, or leave --out away")
    if out.exists() and not replaces:
        raise MisuseError(f"--out {out} is there already, perhaps with the token of another user: give another name")
    # Asked before the call to the broker: a token that was made and could not be written would be lost.
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise MisuseError(f"--out {out} cannot be written: is {out.parent} a directory that you may write to?")


def _print_token(what: str, issued: IssuedToken, out: Path | None, *, as_json: bool) -> None:
    token = issued.token
    if out is not None and token is not None:
        _write_private(out, token)
    if as_json:
        click.echo(json_text({**asdict(issued.user), "token": None if out is not None else token}))
    elif token is None:
        say(f"{what}; its certificate is {issued.user.certificate}")
    elif out is not None:
        say(f"{what}; its token is in {out}")
    else:
        say(f"{what}; its token, which is not shown again:", err=True)
        click.echo(token)


def _write_private(path: Path, token: str) -> None:
    """Write a new file, then move it into place, so that a client which reads it sees either token whole."""
    new = _new_file(path)
    # Exclusively, and with its mode from the first byte: another user's file or link at this name is never written to.
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    new.replace(path)


def _new_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _print_user(found: UserDetails, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    limits = ", ".join(f"{name}={value:g}" for name, value in found.limits.items())
    print_facts(
        {
            **asdict(found),
            "roles": ", ".join(found.roles) or None,
            "limits": limits or None,
            "tokens": None,
            "access_keys": ", ".join(key.id for key in found.access_keys) or None,
        }
    )
    if found.tokens:
        print_rows(
            {"token": each.id, "created_at": each.created_at, "expires_at": each.expires_at} for each in found.tokens
        )
