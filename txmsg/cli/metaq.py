"""`txmsg metaq`: logs, in a directory or at the address of a server."""

from __future__ import annotations

import click

from txmsg.cli.metaq_serve import serve

__all__ = ["metaq"]


@click.group()
def metaq() -> None:
    """Serve logs."""


metaq.add_command(serve)
