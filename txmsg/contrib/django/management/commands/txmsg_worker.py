"""`manage.py txmsg_worker`: runs the handlers of a project."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from txmsg.contrib.django.subscriptions import application
from txmsg.errors import TxmsgError
from txmsg.runtime import loops


class Command(BaseCommand):
    """Until SIGINT or SIGTERM comes; what runs is finished."""

    help = (
        "Runs the handlers that @subscribe registered, in the module `handlers` of each app, until SIGINT or SIGTERM."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("groups", nargs="*", metavar="GROUP", help="run these consumer groups alone (default: all)")

    def handle(self, *_: object, groups: list[str], **__: Any) -> None:
        try:
            app = application(groups)
            found = app.chosen()
            if not found:
                raise CommandError(
                    "there are no handlers: put functions decorated by txmsg.contrib.django.subscribe into the module "
                    "`handlers` of an app of INSTALLED_APPS"
                )

            def started() -> None:
                for each in found:
                    self.stdout.write(f"group {each.group} reads {each.topic}")
                self.stdout.write("receiving; end with Ctrl-C")
                self.stdout.flush()

            loops.run_application(app.run_async(started=started))
        except TxmsgError as exc:
            raise CommandError(str(exc)) from exc
