"""The service Messages: single messages, found and traced. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from txmsg.access.permissions import DESCRIBE_CLUSTER, DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_TOPIC
from txmsg.broker.api.withheld import error_of, failure_of
from txmsg.broker.journal import Event
from txmsg.broker.store.body_keys import BodyKeys
from txmsg.broker.store.journal import EntryRow
from txmsg.broker.store.messages import EndedRow, FoundRow, GroupRow, Messages
from txmsg.errors import InvalidMessage, ProtocolError
from txmsg.logs import EventLog
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX, check_name, datetime_of_us, parse_id, us_of_datetime
from txmsg.wire.caller import may
from txmsg.wire.codec import REQUEST_ITEMS_MAX, slices_of_ids
from txmsg.wire.v1 import messages_pb2 as pb

_log = EventLog(__name__)

_ERASE_MAX = 1000
_OF_HANDLERS = frozenset({Event.REFUSED, Event.RETRY})
"""Events whose details are what a handler raised."""
_OFFSET_MAX = 2**63 - 1
_REPLY_SIZE_BYTES_MAX = 16 * 1024 * 1024


class MessagesApi:
    """The service Messages."""

    def __init__(self, messages: Messages, keys: BodyKeys) -> None:
        self._messages = messages
        self._keys = keys

    async def find(self, request: pb.FindMessagesRequest) -> pb.FindMessagesReply:
        limit, with_bodies = min(request.limit or 100, 10_000), request.with_bodies
        if request.HasField("place"):
            if request.key or request.id:
                raise ProtocolError("give an id, a key or a place to find a message")
            rows = await self._from_place(request.topic, request.place, limit=limit, with_bodies=with_bodies)
        else:
            rows = await self._rows(request, limit=limit, with_bodies=with_bodies)
        return pb.FindMessagesReply(
            messages=[_message(row, with_bodies=request.with_bodies) for row in rows if may(DESCRIBE_TOPIC, row.topic)],
            more=bool(rows) and rows[-1].more,
        )

    async def trace(self, request: pb.TraceRequest) -> pb.TraceReply:
        limit = min(request.limit or 20, 1000) if request.key else MESSAGES_PER_TRANSACTION_MAX
        rows = await self._rows(request, limit=limit, with_bodies=False)
        reply = pb.TraceReply(more=bool(rows) and rows[-1].more)
        for row in rows:
            if not may(DESCRIBE_TOPIC, row.topic):
                continue
            traced = pb.TracedMessage(message=_message(row))
            if row.queue_offset is not None:
                place = (row.queue_id, row.queue_offset)
                traced.groups.extend(
                    _group(state, row.topic)
                    for state in await self._messages.groups_of(*place)
                    if may(DESCRIBE_GROUP, state.group_name)
                )
                traced.mirrors.extend(
                    pb.MirrorTrace(mirror=mirror.name, log=mirror.log, mirrored=mirror.is_mirrored)
                    for mirror in await self._messages.mirrors_of(*place)
                    if may(DESCRIBE_CLUSTER, "")
                )
            entries = await self._messages.journal_of(
                row.transaction_id,
                row.n,
                queue_id=row.queue_id,
                queue_offset=row.queue_offset,
                since=row.half_stored_at or row.stored_at,
            )
            traced.journal.CopyFrom(_journal(row.journal_since, entries, row.topic))
            reply.messages.append(traced)
        if request.id and not rows:
            transaction_id, _ = parse_id(request.id)
            ended = await self._messages.ended(transaction_id)
            if ended is not None and may(DESCRIBE_TOPIC, ended.topic or ""):
                entries = await self._messages.journal_of(
                    transaction_id, 0, queue_id=None, queue_offset=None, since=ended.half_stored_at
                )
                reply.ended.CopyFrom(_ended(ended, entries))
        return reply

    async def erase(self, request: pb.EraseRequest) -> pb.EraseReply:
        topic = check_name("topic", request.topic)
        ids = [parse_id(each) for each in request.ids]
        if len(ids) > _ERASE_MAX:
            raise InvalidMessage(f"{len(ids)} ids in one request: at most {_ERASE_MAX} are allowed, send several")
        results = [await self._keys.erase(topic, transaction_id, n) for transaction_id, n in ids]
        _log.info(
            "message.erased",
            "%(messages)d messages of topic %(topic)s are erased",
            messages=sum(erased for _, erased in results),
            topic=topic,
        )
        return pb.EraseReply(results=[pb.EraseReply.Result(found=found, erased=erased) for found, erased in results])

    async def body_keys(self, request: pb.BodyKeysRequest) -> pb.BodyKeysReply:
        ids = slices_of_ids(request.transaction_ids)
        ns = list(request.n) or [0] * len(ids)
        if len(ns) != len(ids) or len(ids) > REQUEST_ITEMS_MAX:
            raise ProtocolError(f"{len(ids)} messages come with {len(ns)} numbers: at most {REQUEST_ITEMS_MAX} of both")
        topic = check_name("topic", request.topic)
        keys = (await self._keys.of({topic: set(ids)}))[topic]
        return pb.BodyKeysReply(keys=[keys.get((each, n)) or b"" for each, n in zip(ids, ns, strict=True)])

    async def _rows(
        self, request: pb.FindMessagesRequest | pb.TraceRequest, *, limit: int, with_bodies: bool
    ) -> Sequence[FoundRow]:
        if bool(request.key) == bool(request.id):
            raise ProtocolError("give an id, a key or a place to find a message")
        if request.id:
            return await self._messages.of_id(
                *parse_id(request.id), limit=limit, with_bodies=with_bodies, size_bytes_max=_REPLY_SIZE_BYTES_MAX
            )
        return await self._messages.of_key(
            request.key,
            topic=check_name("topic", request.topic) if request.topic else None,
            limit=limit,
            with_bodies=with_bodies,
            size_bytes_max=_REPLY_SIZE_BYTES_MAX,
        )

    async def _from_place(self, topic: str, place: pb.Place, *, limit: int, with_bodies: bool) -> Sequence[FoundRow]:
        if place.HasField("offset") == place.HasField("at_us"):
            raise ProtocolError("give either an offset or a time to begin at")
        return await self._messages.from_place(
            check_name("topic", topic),
            place.queue if place.HasField("queue") else None,
            offset=min(place.offset, _OFFSET_MAX) if place.HasField("offset") else None,
            at=datetime_of_us(place.at_us) if place.HasField("at_us") else None,
            limit=limit,
            with_bodies=with_bodies,
            size_bytes_max=_REPLY_SIZE_BYTES_MAX,
        )


def _us(moment: datetime | None) -> int:
    return 0 if moment is None else us_of_datetime(moment)


def _decision(decided_by: int | None) -> str:
    return "UNDECIDED" if decided_by is None else pb.FoundMessage.Decision.Name(decided_by)


def _message(row: FoundRow, *, with_bodies: bool = False) -> pb.FoundMessage:
    withheld = with_bodies and not may(READ_TOPIC, row.topic)
    return pb.FoundMessage(
        transaction_id=row.transaction_id.bytes,
        n=row.n,
        state=row.state.upper(),
        topic=row.topic,
        queue=row.number,
        offset=row.queue_offset or 0,
        segment=row.segment or 0,
        decided_by=_decision(row.decided_by),
        key=row.key or "",
        tag=row.tag or "",
        ordering_key=row.ordering_key or "",
        headers=b"" if withheld else row.headers or b"",
        body=b"" if withheld else row.body,
        withheld=withheld,
        size_bytes=row.size_bytes,
        born_at_us=us_of_datetime(row.born_at),
        half_stored_at_us=_us(row.half_stored_at),
        stored_at_us=_us(row.stored_at),
        deliver_at_us=_us(row.deliver_at),
        producer_group=row.producer_group or "",
        checks=row.checks or 0,
        next_check_at_us=_us(row.next_check_at),
        parked_reason=row.parked_reason or "",
        retrying=row.retrying,
        dead=row.dead,
    )


def _group(row: GroupRow, topic: str) -> pb.GroupTrace:
    return pb.GroupTrace(
        group=row.group_name,
        state=row.state.upper(),
        attempts=row.attempts,
        next_attempt_at_us=_us(row.next_attempt_at),
        died_at_us=_us(row.died_at),
        generation=row.generation,
        failures=[failure_of(topic, failure) for failure in row.failures],
    )


def _ended(row: EndedRow, entries: Sequence[EntryRow]) -> pb.EndedTransaction:
    return pb.EndedTransaction(
        at_us=us_of_datetime(row.at),
        taken_back=row.committed,
        topic=row.topic or "",
        half_stored_at_us=_us(row.half_stored_at),
        producer_group=row.producer_group or "",
        decided_by=_decision(row.decided_by),
        journal=_journal(row.journal_since, entries, row.topic or ""),
    )


def _journal(since: datetime | None, entries: Sequence[EntryRow], topic: str) -> pb.Journal:
    return pb.Journal(
        since_us=_us(since),
        entries=[
            pb.JournalEntry(
                seq=entry.seq,
                at_us=us_of_datetime(entry.at),
                event=entry.event.upper(),
                group=entry.group_name or "",
                by=entry.actor or "",
                attempt=entry.attempt or 0,
                detail=error_of(topic, entry.detail) if entry.event in _OF_HANDLERS else entry.detail or "",
                until_us=_us(entry.until),
                count=entry.entries or 0,
            )
            for entry in entries
            if entry.group_name is None or may(DESCRIBE_GROUP, entry.group_name)
        ],
    )
