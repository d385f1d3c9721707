"""The service DeadLetters: dead letters listed, redriven and purged. Decides nothing."""

from __future__ import annotations

import re

from txmsg.access.permissions import DESCRIBE_GROUP, READ_TOPIC
from txmsg.broker.api.withheld import error_of, failure_of
from txmsg.broker.store.dead_letters import DeadLetterFilter, DeadLetterRow, DeadLetters, Place
from txmsg.errors import ProtocolError, shown
from txmsg.message import Offset, QueueId, check_name, datetime_of_us, parse_id, us_of_datetime
from txmsg.wire.caller import may, names_for
from txmsg.wire.v1 import dead_letters_pb2 as pb

_LIST_SIZE_BYTES_MAX = 16 * 1024 * 1024
_BATCH_MAX = 1000
_TOKEN = re.compile(r"(\d{1,17})\.(\d{1,9})\.(\d{1,9})\.(\d{1,18})")


class DeadLettersApi:
    """The service DeadLetters."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    async def list(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersReply:
        rows = await self._dead_letters.list(
            _filter(request.filter),
            after=_place(request.after) if request.after else None,
            limit=min(request.limit or 100, 10_000),
            with_bodies=request.with_bodies,
            size_bytes_max=_LIST_SIZE_BYTES_MAX,
            groups=names_for(DESCRIBE_GROUP),
        )
        return pb.ListDeadLettersReply(
            letters=[_letter(row, with_bodies=request.with_bodies) for row in rows],
            next=_token(rows[-1].place) if rows and rows[-1].more else "",
        )

    async def count(self, request: pb.CountRequest) -> pb.CountReply:
        count, as_of = await self._dead_letters.count(_filter(request.filter))
        return pb.CountReply(count=count, as_of_us=us_of_datetime(as_of))

    async def redrive(self, request: pb.RedriveRequest) -> pb.RedriveReply:
        limit = min(request.limit, _BATCH_MAX)
        return pb.RedriveReply(redriven=await self._dead_letters.redrive(_filter(request.filter), limit))

    async def purge(self, request: pb.PurgeRequest) -> pb.PurgeReply:
        limit = min(request.limit, _BATCH_MAX)
        return pb.PurgeReply(purged=await self._dead_letters.purge(_filter(request.filter), limit))


def _filter(asked: pb.DeadLetterFilter) -> DeadLetterFilter:
    """Raises InvalidName or InvalidMessage for what names nothing."""
    transaction_id, n = parse_id(asked.id) if asked.id else (None, None)
    return DeadLetterFilter(
        group=check_name("group", asked.group) if asked.group else None,
        topic=check_name("topic", asked.topic) if asked.topic else None,
        since=datetime_of_us(asked.since_us) if asked.since_us else None,
        until=datetime_of_us(asked.until_us) if asked.until_us else None,
        error=asked.error or None,
        transaction_id=transaction_id,
        n=n,
        key=asked.key or None,
    )


def _token(place: Place) -> str:
    return f"{us_of_datetime(place.died_at)}.{place.group_id}.{place.queue_id}.{place.queue_offset}"


def _place(token: str) -> Place:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of dead letters: give the last value of `next`")
    died_at_us, group_id, queue_id, offset = map(int, found.groups())
    return Place(
        died_at=datetime_of_us(died_at_us),
        group_id=group_id,
        queue_id=QueueId(queue_id),
        queue_offset=Offset(offset),
    )


def _letter(row: DeadLetterRow, *, with_bodies: bool) -> pb.DeadLetter:
    withheld = with_bodies and not may(READ_TOPIC, row.topic)
    return pb.DeadLetter(
        group=row.group_name,
        topic=row.topic,
        queue=row.number,
        offset=row.queue_offset,
        transaction_id=row.transaction_id.bytes,
        n=row.n,
        key=row.key or "",
        tag=row.tag or "",
        ordering_key=row.ordering_key or "",
        headers=b"" if withheld else row.headers or b"",
        body=b"" if withheld else row.body,
        withheld=withheld,
        born_at_us=us_of_datetime(row.born_at),
        stored_at_us=us_of_datetime(row.stored_at),
        died_at_us=us_of_datetime(row.died_at),
        attempts=row.attempts,
        last_error=error_of(row.topic, row.last_error),
        failures=[failure_of(row.topic, failure) for failure in row.failures],
        generation=row.generation,
        blocks_key=row.blocks_key,
        size_bytes=row.size_bytes,
    )
