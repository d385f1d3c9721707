"""What the commands about mirrors share: options, and a session on the Notify database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from txmsg.cli.admin import Decorator

if TYPE_CHECKING:
    from txmsg.binlog.database import Session

__all__ = ["exclude_option", "mirror_session", "name_option", "storage_option", "topics_option"]

storage_option: Decorator = click.option(
    "--storage",
    metavar="URL",
    envvar="TXMSG_STORAGE",
    show_envvar=True,
    required=True,
    help="The Notify database: postgresql://user@host:5432/database.",
)
name_option: Decorator = click.option(
    "--name",
    metavar="NAME",
    default="metaq",
    show_default=True,
    help="Name of the mirror, its slot and its publication.",
)
topics_option: Decorator = click.option(
    "--topics",
    metavar="PATTERN",
    multiple=True,
    help="Topics to mirror, with * and ?; repeatable. Default: those of the existing mirror, else all.",
)


def _excluded(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """None: as the mirror was made."""
    if given == ("",):
        return ()
    return given or None


exclude_option: Decorator = click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    callback=_excluded,
    help="Topics to exclude; repeatable. '' excludes none. Default: those of the existing mirror, else none.",
)


def mirror_session(storage: str) -> Session:
    """A session on a Notify database that this release works with."""
    from txmsg.binlog.database import connect
    from txmsg.broker import migrate

    migrate.require(storage)
    return connect(migrate.libpq_url(storage))
