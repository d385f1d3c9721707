"""`txmsg metaq`: logs, in a directory or at the address of a server."""

from __future__ import annotations

import click

from txmsg.cli.metaq_check import check
from txmsg.cli.metaq_group import group
from txmsg.cli.metaq_read import dump, tail, topics
from txmsg.cli.metaq_serve import serve

__all__ = ["metaq"]


@click.group()
def metaq() -> None:
    """Serve logs, look at them and their groups, check and repair them."""


for _command in (check, dump, group, serve, tail, topics):
    metaq.add_command(_command)
