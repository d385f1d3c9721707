"""`manage.py txmsg_worker`: runs the handlers of a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from txmsg.contrib.django.subscriptions import application
from txmsg.contrib.django.worker import APP
from txmsg.errors import TxmsgError
from txmsg.runtime import loops

if TYPE_CHECKING:
    import click

_OF_THIS_COMMAND: Final = ("--groups", "--json")
_NO_HANDLERS: Final = (
    "there are no handlers: put functions decorated by txmsg.contrib.django.subscribe into the module `handlers` of an "
    "app of INSTALLED_APPS"
)


class Command(BaseCommand):
    """Runs the handlers until SIGINT or SIGTERM comes; running ones are finished."""

    help = (
        "Runs the handlers that @subscribe registered, in the module `handlers` of each app, until SIGINT or SIGTERM: "
        "in this process, or with one of the options of `txmsg worker` (needs 'txmsg[worker]') in supervised ones."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("groups", nargs="*", metavar="GROUP", help="run these consumer groups alone (default: all)")
        group = parser.add_argument_group("supervised processes, as `txmsg worker` runs them")
        for option in _options():
            how: dict[str, Any] = {"action": "store_true"} if option.is_flag else {"metavar": option.metavar or "VALUE"}
            group.add_argument(*option.opts, help=(option.help or "").replace("%", "%%"), **how)

    def handle(self, *_: object, groups: list[str], **given: Any) -> None:
        try:
            app = application(groups)
            found = app._chosen()
            if not found:
                raise CommandError(_NO_HANDLERS)
            if arguments := list(_arguments(given)):
                _supervise([APP, "--groups", ",".join(groups), *arguments])
                return

            def started() -> None:
                for each in found:
                    self.stdout.write(f"group {each.group} reads {', '.join(each.topics)}")
                self.stdout.write("receiving; end with Ctrl-C")
                self.stdout.flush()

            loops.run_application(app.run_async(started=started))
        except TxmsgError as exc:
            raise CommandError(str(exc)) from exc


def _options() -> list[click.Option]:
    """Return the options of `txmsg worker`; none if its extra is not installed."""
    try:
        import click

        from txmsg.ops.cli.worker import worker
    except ModuleNotFoundError:
        return []
    options = [option for option in worker.params if isinstance(option, click.Option)]
    return [option for option in options if not set(option.opts) & set(_OF_THIS_COMMAND)]


def _arguments(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the given options as arguments of `txmsg worker`."""
    for option in _options():
        value = given.get(option.opts[0].removeprefix("--").replace("-", "_"))
        if value is True:
            yield option.opts[0]
        elif value:
            yield from (option.opts[0], value)


def _supervise(arguments: Sequence[str]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where manage.py is, and what --pythonpath has added

    import click

    from txmsg.ops.cli.worker import worker

    try:
        worker.main(list(arguments), prog_name="manage.py txmsg_worker", standalone_mode=False)
    except click.ClickException as exc:
        raise CommandError(exc.format_message()) from exc
