"""`txmsg metaq status`: how a log does, for people and for alerts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import require_metaq
from txmsg.cli.showing import print_facts

if TYPE_CHECKING:
    from txmsg.metaq.access import LogAccess

__all__ = ["status"]


@click.command(
    short_help="Show the state of a log, and whether it accepts appends.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq status metaq:7720\n  txmsg metaq status /var/lib/metaq --json",
)
@click.argument("log")
@json_option
def status(*, log: str, as_json: bool) -> None:
    """Show the state of a log; of a server, also whether it accepts appends, and its load.

    LOG is a directory, or the address of a server. Exit status 1 if the server accepts no appends, for example because
    its disk is full.
    """
    require_metaq()
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        values = _values(access)
    if as_json:
        click.echo(json.dumps(values))
    else:
        print_facts(values)
    if values.get("failure"):
        raise SystemExit(1)


def _values(access: LogAccess) -> dict[str, object]:
    from txmsg.metaq.local import LocalLog
    from txmsg.metaq.remote.remote_log import RemoteLog
    from txmsg.metaq.store.commit_log import CommitLogReader

    topics = access.topics()
    values: dict[str, object] = {"topics": len(topics), "queues": sum(map(len, topics.values()))}
    if isinstance(access, RemoteLog):
        told = access.describe()
        return values | {
            "log_id": told.log_id,
            "generation": told.generation,
            "release": told.release,
            "failure": told.failure or None,
            "waiting_fetches": told.waiting,
            "members": told.sessions,
            "appending_bytes": told.appending_bytes,
        }
    assert isinstance(access, LocalLog)
    identity, files = access.identity(), CommitLogReader(access.root / "commitlog")
    return values | {
        "log_id": identity.log_id,
        "generation": identity.generation,
        "size_bytes": files.end() - files.begin(),
    }
