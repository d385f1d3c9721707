"""The service Messages: single messages, found and traced. Decides which of them a caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from txmsg.administration.messages import (
    EndedTransaction,
    Erased,
    ErasedMessages,
    Erasure,
    FoundMessage,
    JournalEntry,
    LifeInGroup,
    LifeInMirror,
    MessageJournal,
    MessagePage,
    MessageQuery,
    Trace,
    TracedMessage,
    TraceQuery,
)
from txmsg.broker.api.withheld import error_of
from txmsg.broker.journal import JournalEvent
from txmsg.broker.store.body_keys import BodyKeyStore
from txmsg.broker.store.messages import Located, Messages
from txmsg.errors import InvalidMessage, ProtocolError
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX, Offset, check_name, parse_id
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.permissions import DESCRIBE_CLUSTER, DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_TOPIC
from txmsg.wire.body_keys_query import FoundKeys, KeysQuery
from txmsg.wire.caller import may
from txmsg.wire.codec import REQUEST_ITEMS_MAX, slices_of_ids

_log = EventLog(__name__)

_ERASE_MAX: Final = 1000
_OF_HANDLERS: Final = frozenset({JournalEvent.REFUSED, JournalEvent.RETRY})
"""Events whose details are errors of handlers."""
_REPLY_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_WHICH: Final = "give an id, a key or a place to find a message"


class MessagesApi:
    """The service Messages."""

    def __init__(self, messages: Messages, keys: BodyKeyStore) -> None:
        self._messages = messages
        self._keys = keys

    async def find(self, query: MessageQuery) -> MessagePage:
        # Rights are applied after the page was read: it may be shorter than its limit, and `more` still says if others
        # follow.
        found, more = await self._of_query(query)
        return MessagePage(
            messages=[
                _shown(each.message, with_bodies=query.with_bodies)
                for each in found
                if may(DESCRIBE_TOPIC, each.message.topic)
            ],
            more=more,
        )

    async def _of_query(self, query: MessageQuery) -> tuple[Sequence[Located], bool]:
        if query.place is None:
            return await self._found(query, limit=query.limit, with_bodies=query.with_bodies)
        if query.key or query.id:
            raise ProtocolError(_WHICH)
        if (query.place.offset is None) == (query.place.at is None):
            raise ProtocolError("give either an offset or a time to begin at")
        return await self._messages.from_place(
            check_name("topic", query.topic),
            query.place,
            limit=query.limit,
            with_bodies=query.with_bodies,
            size_bytes_max=_REPLY_SIZE_BYTES_MAX,
        )

    async def trace(self, query: TraceQuery) -> Trace:
        # An id names one transaction, of which all messages are shown.
        limit = query.limit if query.key else MESSAGES_PER_TRANSACTION_MAX
        found, more = await self._found(query, limit=limit, with_bodies=False)
        ended = await self._ended(query.id) if query.id and not found else None
        traced = [await self._traced(each) for each in found if may(DESCRIBE_TOPIC, each.message.topic)]
        return Trace(messages=traced, ended=ended, more=more)

    async def _traced(self, located: Located) -> TracedMessage:
        message, queue_id = located.message, located.queue_id
        groups: Sequence[LifeInGroup] = ()
        mirrors: Sequence[LifeInMirror] = ()
        if message.offset is not None:
            groups = [
                replace(
                    group,
                    failures=[replace(each, error=error_of(message.topic, each.error)) for each in group.failures],
                )
                for group in await self._messages.groups_of(queue_id, Offset(message.offset))
                if may(DESCRIBE_GROUP, group.group)
            ]
            if may(DESCRIBE_CLUSTER, ""):
                mirrors = await self._messages.mirrors_of(queue_id, Offset(message.offset))
        entries = await self._messages.journal_of(
            message.transaction_id,
            message.n,
            queue_id=queue_id,
            queue_offset=message.offset,
            since=message.half_stored_at or message.stored_at,
        )
        journal = MessageJournal(since=located.journal_since, entries=_shown_entries(entries, message.topic))
        return TracedMessage(message=message, groups=groups, mirrors=mirrors, journal=journal)

    async def _ended(self, id_: str) -> EndedTransaction | None:
        transaction_id, _ = parse_id(id_)
        ended = await self._messages.ended(transaction_id)
        if ended is None or not may(DESCRIBE_TOPIC, ended.topic or ""):
            return None
        entries = await self._messages.journal_of(
            transaction_id, 0, queue_id=None, queue_offset=None, since=ended.half_stored_at
        )
        return replace(ended, journal=replace(ended.journal, entries=_shown_entries(entries, ended.topic or "")))

    async def erase(self, request: Erasure) -> Erased:
        topic = check_name("topic", request.topic)
        ids = [parse_id(each) for each in request.ids]
        if len(ids) > _ERASE_MAX:
            raise InvalidMessage(f"{len(ids)} ids in one request: at most {_ERASE_MAX} are allowed, send several")
        results = []
        for id_, (transaction_id, n) in zip(request.ids, ids, strict=True):
            # A transaction per id: an interrupted request has erased some of them, and can be repeated.
            found, erased = await self._keys.erase(topic, transaction_id, n)
            results.append(ErasedMessages(id=id_, found=found, erased=erased))
        _log.info(
            "message.erased",
            "%(messages)d messages of topic %(topic)s are erased",
            messages=sum(each.erased for each in results),
            topic=topic,
        )
        return Erased(results=results)

    async def body_keys(self, query: KeysQuery) -> FoundKeys:
        ids = slices_of_ids(query.transaction_ids)
        if len(query.n) != len(ids) or len(ids) > REQUEST_ITEMS_MAX:
            raise ProtocolError(
                f"{len(ids)} messages come with {len(query.n)} numbers: at most {REQUEST_ITEMS_MAX} of both"
            )
        topic = check_name("topic", query.topic)
        keys = (await self._keys.of({topic: set(ids)}))[topic]
        return FoundKeys(keys=[keys.get((each, n)) or b"" for each, n in zip(ids, query.n, strict=True)])

    async def _found(
        self, query: MessageQuery | TraceQuery, *, limit: int, with_bodies: bool
    ) -> tuple[Sequence[Located], bool]:
        if bool(query.key) == bool(query.id):
            raise ProtocolError(_WHICH)
        if query.id:
            return await self._messages.of_id(
                *parse_id(query.id), limit=limit, with_bodies=with_bodies, size_bytes_max=_REPLY_SIZE_BYTES_MAX
            )
        return await self._messages.of_key(
            query.key,
            topic=check_name("topic", query.topic) if query.topic else None,
            limit=limit,
            with_bodies=with_bodies,
            size_bytes_max=_REPLY_SIZE_BYTES_MAX,
        )


def _shown(message: FoundMessage, *, with_bodies: bool) -> FoundMessage:
    if with_bodies and not may(READ_TOPIC, message.topic):
        return replace(message, headers={}, body=b"", is_withheld=True)
    return message


def _shown_entries(entries: Sequence[JournalEntry], topic: str) -> Sequence[JournalEntry]:
    return [
        replace(entry, detail=error_of(topic, entry.detail) or None) if entry.event in _OF_HANDLERS else entry
        for entry in entries
        if entry.group is None or may(DESCRIBE_GROUP, entry.group)
    ]
