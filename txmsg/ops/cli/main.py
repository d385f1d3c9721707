"""The `txmsg` command: its subcommands by name, loaded when they are called, and the texts of errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import IO, Any, Final

from txmsg.runtime.extras import lacking

try:
    import click
except ModuleNotFoundError as exc:  # the command is installed with the client alone
    sys.exit(lacking(" ".join(["txmsg", *sys.argv[1:2]]), exc, sys.argv[1:2]))

from txmsg.errors import TxmsgError, printable
from txmsg.ops.cli.defaults import apply
from txmsg.runtime.owners import REFUSALS, refusal_text

EXAMPLE_FORMAT: Final = "\b\nExample:"
"""The beginning of an epilog that click must not re-wrap."""

COMMANDS: Final = {
    "acl": "Allow users and roles what they need, and say which rule decides.",
    "agent": "Follow files of lines, and append their lines to a log.",
    "alert": "Show and silence alerts that brokers raise, and test their receivers.",
    "audit": "List who changed what, from where, and what was there before.",
    "broker": "Run a broker.",
    "cert": "Create certificates for development and tests.",
    "cluster": "Look at the brokers of a database, and take one out for maintenance.",
    "config": "Explain settings, look at their values, and change them while brokers run.",
    "console": "Show brokers, topics, groups, dead letters and settings in a browser.",
    "db": "Look after a Notify database: upgrade, check.",
    "dead-letter": "Look at messages that a group could not process, deliver them again, or purge them.",
    "demo": "Play an example with real processes and crashes.",
    "doctor": "Look at a running set, and say what is wrong or risky, and what mends it.",
    "fence": "Look after the fence of a business database: purge, id, renew-id.",
    "group": "Look at consumer groups, change their settings, replay, delete them.",
    "half": "Look at half messages, have them checked again, or decide by hand.",
    "health": "Ask whether a process of this machine is ready.",
    "message": "Find messages by key or id, see what became of them, take back what is not due.",
    "metaq": "Look at MetaQ logs, check and repair them, serve them to other machines.",
    "outbox": "Look at messages that wait in a business database for a broker: list, relay, delete.",
    "rocketmq": "Let RocketMQ's official clients send and receive: Java, Go, Node, Rust, Python.",
    "schema": "Register, check, show and delete schemas of topics, and describe topics in AsyncAPI.",
    "tables": "Print the tables of a business database as SQL, and the rights that roles need.",
    "tailer": "Mirror a Notify database into MetaQ: run, status, verify, fork.",
    "topic": "Create topics, look at them, change their settings, delete them.",
    "up": "Run a database, a broker, MetaQ and a tailer together, for development.",
    "user": "Create users of brokers with authentication, rotate and revoke their tokens.",
    "worker": "Run an application in processes that are supervised.",
}
"""Subcommands with their line in `txmsg --help`. The module has the command's name, with _ for -."""

_AS_JSON: Final = "txmsg.as_json"
_COMMAND: Final = "txmsg.command"


class LazyGroup(click.Group):
    """Imports the module of a subcommand only when it is called: `txmsg --help` loads no protobuf and no SQLAlchemy.

    So modules of commands import what they need at their top. modules: of txmsg.ops.cli, by command. path: the words
    that call this group, without `txmsg`.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], path: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # Noted before the import below, which may fail for want of an extra: the error names the command.
        ctx.meta[_COMMAND] = " ".join([*self._path, cmd_name])
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(f"txmsg.ops.cli.{self._modules[cmd_name]}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        ctx.default_map = {**(ctx.default_map or {}), cmd_name: apply(command, [*self._path, cmd_name])}
        return command


class _JsonError(click.ClickException):
    """An error of a command under --json: one line on stderr, `{"error": {"code": "not_found", "text": "..."}}`.

    The code is that of the class in errors.py, "usage" for a wrong command line, or "command" for any other error.
    """

    def __init__(self, code: str, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = exit_code  # type: ignore[misc]  # 2 for a wrong command line, as without --json

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(json.dumps({"error": {"code": self.code, "text": self.message}}), file=file, err=file is None)


class _Commands(LazyGroup):
    """The subcommands of `txmsg`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Not as the subcommand has parsed it: an error of that is told in JSON, too.
        ctx.meta[_AS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}: choose one of {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.meta[_AS_JSON]:
            return self._invoke(ctx)
        try:
            return self._invoke(ctx)
        except click.ClickException as exc:
            cause = exc.__cause__
            code = (
                cause.code
                if isinstance(cause, TxmsgError)
                else "usage"
                if isinstance(exc, click.UsageError)
                else "command"
            )
            raise _JsonError(code, exc.format_message(), exc.exit_code) from exc

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TxmsgError as exc:
            # One line on stderr and exit status 1, also for what libpq says in two.
            told = "; ".join(filter(None, map(str.strip, str(exc).splitlines())))
            raise click.ClickException(printable(told)) from exc
        except OSError as exc:
            # Only what a user can mend, such as a missing right on a file; any other error is ours, and keeps its
            # traceback.
            if exc.errno not in REFUSALS or exc.filename is None:
                raise
            raise click.ClickException(printable(f"{exc.filename} cannot be used: {refusal_text(exc)}")) from exc
        except click.NoSuchOption as exc:
            params = exc.ctx.command.params if exc.ctx is not None else ()
            if not exc.possibilities and any(isinstance(each, click.Argument) for each in params):
                told = f"{exc.message.rstrip('.')}; an argument that begins with - comes after all options and --"
                raise click.NoSuchOption(exc.option_name, told, ctx=exc.ctx) from exc
            raise
        except ModuleNotFoundError as exc:
            command = ctx.meta.get(_COMMAND, "")
            lack = lacking(f"txmsg {command}".strip(), exc, command.split())
            if lack is None:
                raise
            raise click.ClickException(lack) from exc


@click.command(
    cls=_Commands,
    modules={name: name.replace("-", "_") for name in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg broker --listen 127.0.0.1:7700\n\n`txmsg COMMAND --help` explains each command.",
)
@click.version_option(version("txmsg"), prog_name="txmsg", message="%(prog)s %(version)s")
def main() -> None:
    """Transactional messages: delivered if and only if your database transaction commits."""


if __name__ == "__main__":
    main(prog_name="txmsg")
