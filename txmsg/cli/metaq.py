"""`txmsg metaq`: logs, in a directory or at the address of a server."""

from __future__ import annotations

import click

from txmsg.cli.metaq_check import check
from txmsg.cli.metaq_dump import dump
from txmsg.cli.metaq_serve import serve
from txmsg.cli.metaq_status import status
from txmsg.cli.metaq_tail import tail
from txmsg.cli.metaq_topics import set_, topics

__all__ = ["metaq"]


@click.group()
def metaq() -> None:
    """Serve, inspect, check and repair logs."""


for _command in (check, dump, serve, set_, status, tail, topics):
    metaq.add_command(_command)
