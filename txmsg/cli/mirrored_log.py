"""`txmsg tailer fork` and `verify`: a log in a directory beside the table that it mirrors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from txmsg.cli.admin import json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.mirror_options import exclude_option, mirror_session, name_option, storage_option, topics_option
from txmsg.cli.quantities import duration
from txmsg.cli.showing import print_facts

__all__ = ["fork", "verify"]


@click.command(
    short_help="Continue a log that has diverged from its table.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer fork --storage postgresql://notify@db/notify --metaq /var/lib/metaq\n\n"
    "Stop the tailer first, and `txmsg metaq serve` if it serves this directory. Consumers may have read messages that "
    "the log gives up.",
)
@storage_option
@click.option("--metaq", metavar="DIR", required=True, help="Directory of the log.")
@name_option
@yes_option
@json_option
def fork(*, storage: str, metaq: str, name: str, yes: bool, as_json: bool) -> None:
    """Continue a log under a new generation, from the offset where it and its table begin to differ.

    Use it if the table is right, as after a restored backup, or the promotion of a standby that lagged behind. From
    that offset on, the log's own messages are no longer served, the tailer mirrors the table's, and groups that were
    further are set back.
    """
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import translated
    from txmsg.binlog.status import diverged
    from txmsg.mirror import fork_log, open_sink

    check_mirror_name(name)
    directory = _directory(metaq)
    with closing(mirror_session(storage)) as session, translated():
        with closing(open_sink(str(directory))) as sink:
            cuts = diverged(session, sink, name)
            generation = sink.generation
        groups: Sequence[str] = ()
        for each in cuts if not as_json else ():
            click.echo(
                f"topic {each.topic} queue {each.queue}: from offset {each.offset} on, {each.log_end - each.offset} "
                f"messages of the log give way to {max(0, each.table_end - each.offset)} of the table"
            )
        if cuts:
            if not yes:
                click.confirm(f"Give up what {metaq} has from there on?", abort=True)
            generation, groups = fork_log(directory, cuts)
    if as_json:
        values = [{"topic": each.topic, "queue": each.queue, "offset": each.offset} for each in cuts]
        click.echo(json.dumps({"generation": generation, "cuts": values, "groups_set_back": list(groups)}))
    elif cuts:
        for group in groups:
            click.echo(f"group {group} was further, and is set back")
        click.echo(f"the log continues under generation {generation}: start it with `txmsg tailer run`")
    else:
        click.echo(f"log and table have not diverged; the log stays at generation {generation}")


def _directory(metaq: str) -> Path:
    """A log that is there, in a directory: making one, or asking a server, would be a mistake here."""
    directory = Path(metaq)
    if not (directory / "log.json").exists():
        raise click.UsageError(f"--metaq {metaq}: there is no log in such a directory; name it on the machine it is on")
    return directory.absolute()


@click.command(
    short_help="Compare a log with its table, message by message.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer verify --storage postgresql://notify@db/notify --metaq /var/lib/metaq",
)
@storage_option
@click.option(
    "--metaq",
    metavar="DIR",
    required=True,
    help="Directory of the log. Its files are read directly, without a server.",
)
@topics_option
@exclude_option
@name_option
@click.option(
    "--wait",
    metavar="TIME",
    type=duration,
    default="10s",
    show_default=True,
    help="How long to wait for a running tailer to catch up with what is committed now.",
)
@json_option
def verify(
    *,
    storage: str,
    metaq: str,
    topics: tuple[str, ...],
    exclude: tuple[str, ...] | None,
    name: str,
    wait: float,
    as_json: bool,
) -> None:
    """Compare a log with its table: every message, byte for byte, and its offset.

    Shares no code with the log or the tailer. Safe while both run. Exit status 1 if anything differs.
    """
    from rich.console import Console
    from rich.progress import Progress as Bars

    from txmsg.broker import migrate
    from txmsg.verifier.compare import verify as compare

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("messages", total=None)
        found = compare(
            migrate.libpq_url(storage),
            Path(metaq),
            topics=topics,
            exclude=exclude or (),
            mirror=name,
            wait_s=wait,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
        )
    values = dataclasses.asdict(found) | {"differences": list(map(str, found.differences)), "equal": found.is_equal}
    if as_json:
        click.echo(json.dumps(values))
    else:
        differing = sum(found.differing.values())
        print_facts({name: value for name, value in values.items() if isinstance(value, int) and name != "equal"})
        for difference in found.differences:
            click.echo(difference)
        click.echo("equal" if found.is_equal else f"NOT equal: {differing} messages differ")
    if not found.is_equal:
        raise SystemExit(1)
