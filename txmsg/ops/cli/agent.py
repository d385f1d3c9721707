"""`txmsg agent`: follow files of lines, and append their lines to a log."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import click

from txmsg.errors import TxmsgError
from txmsg.metaq.agent.agent import Agent, read_status
from txmsg.metaq.agent.agent_config import LIVE, AgentFile, read_agent_file
from txmsg.metaq.agent.control import SourceChange, change_settings
from txmsg.metaq.agent.figures import dead, figures_of
from txmsg.metaq.location import open_log
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving_on_thread
from txmsg.ops.cli.connections import token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import print_facts, print_rows
from txmsg.runtime.logs import EventLog, log_to_stderr, name_process, set_log_level
from txmsg.runtime.signals import call_on_hangup_by_thread

_log = EventLog(__name__)

_TIMEOUT_S: Final = 5.0
"""Seconds that an append waits for the log before it goes to the spool."""
_SILENT_S: Final = 10.0

_file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.group()
def agent() -> None:
    """Follow log files while programs write them, and append their lines to topics of a log.

    Each line is a message. Its id is derived from the file and the position, so that receivers can drop duplicates.
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
    """Run an agent with the settings in FILE."""
    found = read_agent_file(file)
    config = found.agent
    log_to_stderr(config.log_level, config.log_format)
    name_process(f"agent {config.shown_name()}")
    with open_log(config.log, append=True, timeout_s=_TIMEOUT_S) as log:
        running = Agent(found, log)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: running.stop())
        # By a thread: a handler of the signal would run between any two steps of the agent, also while it holds a lock.
        call_on_hangup_by_thread(partial(_take_again, running, file))

        async def read() -> Figures:
            return figures_of(running)

        probes = Probes(figures=read, unready=lambda: "", dead=lambda: dead(running))
        with serving_on_thread(config.http_listen, probes, token_file=config.http_token_file):
            running.run(on_ready=partial(_print_start, found, as_json=as_json))


def _print_start(found: AgentFile, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"following": len(found.sources), "log": found.agent.log}))
    else:
        click.echo(f"following {len(found.sources)} sources into {found.agent.log}")


def _take_again(running: Agent, file: Path) -> None:
    try:
        found = read_agent_file(file)
    except TxmsgError as exc:
        _log.error("settings.unreadable", "the settings cannot be applied, the former ones stay: %(error)s", error=exc)
        return
    set_log_level(found.agent.log_level)
    running.apply_settings(found)


@agent.command(
    short_help="Check the file of an agent.", epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent check /etc/txmsg/agent.toml"
)
@_file_argument
@json_option
def check(*, file: Path, as_json: bool) -> None:
    """Check the file of an agent without starting it. Exit status 1 if it has an error."""
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
    "set",
    short_help="Change settings of agents while they run.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent set /etc/txmsg/agent.toml lines_per_s=5000 --agents 'web-*'\n"
    "  txmsg agent set /etc/txmsg/agent.toml paused=true \\\n      --sources app --agents web-3",
)
@_file_argument
@click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option("--agents", default="*", metavar="PATTERN", help="Names of agents, with * and ?.  [default: all]")
@click.option("--sources", default="*", metavar="PATTERN", help="Names of sources, with * and ?.  [default: all]")
@token_file_option
@json_option
def set_(*, file: Path, values: tuple[str, ...], agents: str, sources: str, as_json: bool) -> None:
    """Change settings of running agents that append to the log of FILE. Takes effect within seconds.

    NAME is one of lines_per_s, batch_size_bytes, linger_s and paused; an empty VALUE restores the one of the
    agent's file. The change is a message in the log's topic of settings, so it also applies to agents that start later.
    """
    changes = [_change_of(value, agents, sources) for value in values]
    config = read_agent_file(file).agent
    if not config.control:
        raise click.UsageError(f"{file} has control = '': its agents take no settings at run time")
    with open_log(config.log, timeout_s=_TIMEOUT_S, append=True) as log:
        change_settings(log, config.control, changes)
    if as_json:
        click.echo(json.dumps({"changes": [asdict(change) for change in changes]}))
    else:
        for change in changes:
            value = "as its file says" if change.value is None else LIVE[change.setting].in_words(change.value)
            click.echo(f"{change.setting} of sources {change.sources} of agents {change.agents}: {value}")


def _change_of(text: str, agents: str, sources: str) -> SourceChange:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.UsageError(f"{text!r} is not a setting and its value: give {text}=VALUE")
    return SourceChange(agents, sources, name, value or None).checked()


@agent.command(
    short_help="Show how an agent of this machine does.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg agent status /etc/txmsg/agent.toml",
)
@_file_argument
@json_option
def status(*, file: Path, as_json: bool) -> None:
    """Show the state of the agent of FILE: lines sent, unread bytes, bytes in its spool, what blocks a source, and
    which files cannot be read.

    Exit status 1 if the agent does not run, a source is blocked, or a file cannot be read.
    """
    told = read_status(read_agent_file(file).agent.state_dir)
    age_s = time.time() - told["at"]
    held = [source for source in told["sources"].values() if source["held"] or source["unreadable"] or source["log"]]
    if as_json:
        click.echo(json.dumps(told | {"age_s": round(age_s, 1), "runs": age_s < _SILENT_S}))
    else:
        print_facts({"agent": told["agent"], "pid": told["pid"], "log": told["log"], "age_s": round(age_s, 1)})
        print_rows({"source": name, **source} for name, source in told["sources"].items())
        if age_s >= _SILENT_S:
            click.echo(f"nothing was heard of it for {age_s:.0f} s: it does not run")
    if held or age_s >= _SILENT_S:
        raise SystemExit(1)
