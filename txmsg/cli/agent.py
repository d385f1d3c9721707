"""`txmsg agent`: follow files of lines, and append their lines to a log."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path
from typing import Final

import click

from txmsg.agent.agent import Agent, read_status
from txmsg.agent.config import AgentFile, read_agent_file
from txmsg.cli.connections import token_file_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option
from txmsg.cli.output import print_facts, print_rows
from txmsg.errors import TxmsgError
from txmsg.logs import EventLog, log_to_stderr, name_process, set_log_level
from txmsg.metaq.location import open_log
from txmsg.runtime.signals import call_on_hangup_by_thread

_log = EventLog(__name__)

_TIMEOUT_S: Final = 5.0
"""How long an append waits for the log before it goes to the spool."""
_SILENT_S: Final = 10.0

_file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.group()
def agent() -> None:
    """Follow files of lines, as programs write them, and append their lines to topics of a log.

    Each line is a message; its id is that of the file and of its place in it, so that receivers can drop repeats.
    """


@agent.command(
    short_help="Run an agent.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent run /etc/txmsg/agent.toml\n\n"
    "Prints `following N sources into WHERE` when it has begun. SIGTERM and Ctrl-C stop it gracefully; SIGHUP has it "
    "read its file again, and take the live settings of its sources.",
)
@_file_argument
@token_file_option
@json_option
def run(*, file: Path, as_json: bool) -> None:
    """Run an agent, which follows the files that FILE names."""
    found = read_agent_file(file)
    config = found.agent
    log_to_stderr(config.log_level, config.log_format)
    name_process(f"agent {config.shown_name()}")
    with open_log(config.log, append=True, timeout_s=_TIMEOUT_S) as log:
        running = Agent(found, log)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: running.stop())
        call_on_hangup_by_thread(partial(_take_again, running, file))
        running.run(on_ready=partial(_tell, found, as_json=as_json))


def _tell(found: AgentFile, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"following": len(found.sources), "log": found.agent.log}))
    else:
        click.echo(f"following {len(found.sources)} sources into {found.agent.log}")


def _take_again(running: Agent, file: Path) -> None:
    try:
        found = read_agent_file(file)
    except TxmsgError as exc:
        _log.error("settings.unreadable", "the settings cannot be taken, those from before hold: %(error)s", error=exc)
        return
    set_log_level(found.agent.log_level)
    running.use(found)


@agent.command(
    short_help="Check the file of an agent.", epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent check /etc/txmsg/agent.toml"
)
@_file_argument
@json_option
def check(*, file: Path, as_json: bool) -> None:
    """Check the file of an agent as a whole, without starting anything. Exit status 1 with a mistake in it."""
    found = read_agent_file(file)
    rows = [
        {"source": name, "topic": source.topic, "paths": " ".join(source.paths)}
        for name, source in found.sources.items()
    ]
    if as_json:
        click.echo(json.dumps({"log": found.agent.log, "sources": rows}))
    else:
        print_rows(rows)
        click.echo(f"{file} is right: {len(rows)} sources into {found.agent.log}")


@agent.command(
    short_help="Show how an agent of this machine does.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent status /etc/txmsg/agent.toml",
)
@_file_argument
@json_option
def status(*, file: Path, as_json: bool) -> None:
    """Show how the agent of this FILE does: lines sent, bytes not read yet, what waits in its spool, and why.

    Exit status 1 if it does not run, or a source is held up.
    """
    told = read_status(read_agent_file(file).agent.state_dir)
    age_s = time.time() - told["at"]
    held = [source for source in told["sources"].values() if source["held"] or source["log"]]
    if as_json:
        click.echo(json.dumps(told | {"age_s": round(age_s, 1), "runs": age_s < _SILENT_S}))
    else:
        print_facts({"agent": told["agent"], "pid": told["pid"], "log": told["log"], "age_s": round(age_s, 1)})
        print_rows({"source": name, **source} for name, source in told["sources"].items())
        if age_s >= _SILENT_S:
            click.echo(f"nothing was heard of it for {age_s:.0f} s: it does not run")
    if held or age_s >= _SILENT_S:
        raise SystemExit(1)
