"""`manage.py txmsg_purge`: deletes old rows of the fence and the inbox."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS
from sqlalchemy import Engine

from txmsg.client.flows.undecided import held_by
from txmsg.client.receiving.inbox import purge_inbox
from txmsg.contrib.django.configuration import configuration
from txmsg.contrib.django.producers import producer
from txmsg.errors import TxmsgError
from txmsg.wire.brokers import shards_of

_DAY_S = 24 * 3600.0


class Command(BaseCommand):
    """Deletes old rows; to be run daily."""

    help = (
        "Deletes rows of txmsg_fence that no broker needs any more, and rows of txmsg_inbox, which are older than some "
        "days. Run it daily."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias of the database (default: default)")
        parser.add_argument(
            "--older-than-days", type=float, default=14.0, metavar="DAYS", help="age of the rows (default: 14)"
        )

    def handle(self, *_: object, database: str, older_than_days: float, **__: Any) -> None:
        chosen = configuration()
        fence = producer(database).fence
        assert fence is not None, "producers of Django have one"
        assert isinstance(fence.engine, Engine), "it is made of one"
        try:
            held = held_by(*shards_of(chosen.BROKERS), tls=chosen.TLS, token=chosen.TOKEN)
            rows = fence.purge(older_than_days * _DAY_S, held)
            messages = purge_inbox(fence.engine, older_than_days * _DAY_S)
        except TxmsgError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"deleted: {rows} rows of the fence, {messages} of the inbox")
