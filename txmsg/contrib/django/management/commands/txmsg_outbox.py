"""`manage.py txmsg_outbox`: shows the rows that wait in the outbox of a database; --relay relays them now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from txmsg.client.outbox.rows import waiting
from txmsg.contrib.django.producers import producer
from txmsg.errors import TxmsgError


class Command(BaseCommand):
    """Shows the outbox, and relays it for deployments without a process that runs all the time."""

    help = (
        "Shows what waits in the outbox of a database until a broker takes it. Processes that call functions with "
        'when_away="outbox" relay it by themselves.'
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias of the database (default: default)")
        parser.add_argument("--relay", action="store_true", help="relay it now, also what brokers have refused")

    def handle(self, *_: object, database: str, relay: bool, **__: Any) -> None:
        sender = producer(database)
        assert sender.fence is not None, "producers of Django have one"
        assert isinstance(sender.fence.engine, Engine), "it is made of one"
        try:
            if relay:
                self.stdout.write(f"transactions relayed: {sender.relay_outbox()}")
            with sender.fence.engine.connect() as connection:
                left = waiting(connection)
        except TxmsgError as exc:
            raise CommandError(str(exc)) from exc
        except SQLAlchemyError as exc:
            raise CommandError(f"database {database!r} cannot be read: {exc}") from exc
        for each in left:
            self.stdout.write(
                f"group {each.group}: {each.rows} transactions of {each.size_bytes} bytes wait, {each.refused} of them "
                f"refused, the oldest for {each.oldest_s:.0f} s"
            )
        if not left:
            self.stdout.write("nothing waits")
