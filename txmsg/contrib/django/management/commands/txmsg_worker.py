"""`manage.py txmsg_worker`: runs the handlers of a project."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from txmsg.contrib.django.subscriptions import consumers, subscriptions
from txmsg.errors import TxmsgError
from txmsg.runtime.signals import stopped_by_signals


class Command(BaseCommand):
    """Until SIGINT or SIGTERM comes; what runs is finished."""

    help = (
        "Runs the handlers that @subscribe registered, in the module `handlers` of each app, until SIGINT or SIGTERM."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("groups", nargs="*", metavar="GROUP", help="run these consumer groups alone (default: all)")

    def handle(self, *_: object, groups: list[str], **__: Any) -> None:
        stop = threading.Event()
        try:
            found = subscriptions(groups)
            if not found:
                raise CommandError(
                    "there are no handlers: put functions decorated by txmsg.contrib.django.subscribe into the module "
                    "`handlers` of an app of INSTALLED_APPS"
                )
            with stopped_by_signals(stop.set), ExitStack() as started:
                for consumer in consumers(groups):
                    started.enter_context(consumer)
                for each in found:
                    self.stdout.write(f"group {each.group} reads {each.topic}")
                self.stdout.write("receiving; end with Ctrl-C")
                self.stdout.flush()
                stop.wait()
        except TxmsgError as exc:
            raise CommandError(str(exc)) from exc
