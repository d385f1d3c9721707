"""Topics, their queues, and producers: small tables that a broker keeps in memory once read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID
from zlib import crc32

from txmsg.administration.topics import CreatedTopic, CreateTopic
from txmsg.broker.periodic import repeat
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.creators import check_created, creator
from txmsg.broker.store.incarnation import current_incarnation, same_incarnation
from txmsg.errors import MisuseError, PermissionDenied, TopicExists, TxmsgError, UnknownTopic
from txmsg.message import ANY_TYPE, QUEUES_MAX, QueueId, check_name, is_name
from txmsg.runtime.durations import shown_duration
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

ERASABLE_S = (60.0, 36_500 * 86_400.0)
"""Minimum and maximum seconds for which keys of bodies may be kept."""
TOPICS_MADE_MAX = 100
"""Maximum number of missing topics that one request may create."""
_WRITE, _READ = 2, 4
_STALE_S = 8.0
"""Seconds after which topics are read again before use. With a batch on its way less than SETTLED_S of
topic_settings.py: after that, no broker sends by earlier settings."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic; `queue_ids[number]` is the id of queue `number`.

    Messages enter the first write_queues, and are delivered from the first read_queues. Ordering keys are spread over
    the first ordered_queues, a number that changes only while these are drained. version rises with each change.
    """

    name: str
    queue_ids: tuple[QueueId, ...]
    write_queues: int
    ordered_queues: int
    version: int
    read_queues: int = QUEUES_MAX
    permission: int = 6
    send_rate_max: float | None = None
    id: int = 0
    erasable_s: float | None = None
    """Seconds for which the keys of its bodies are kept; None: they are not encrypted."""
    message_type: str = ANY_TYPE
    """The type of messages that it accepts."""
    seals_at: float = 0.0
    """Time from which bodies are encrypted, by the registry's clock: all brokers know by then that they may be."""

    @property
    def is_writable(self) -> bool:
        """True if the topic accepts messages."""
        return bool(self.permission & _WRITE)

    @property
    def readable_queue_ids(self) -> tuple[QueueId, ...]:
        """The queues that are delivered."""
        return self.queue_ids[: self.read_queues] if self.permission & _READ else ()

    def queue_of(self, ordering_key: str) -> QueueId:
        """Return the id of the queue of an ordering key: the same in every broker and release."""
        # Not hash(), which differs from process to process. Part of the order of messages: the function can never
        # change.
        return self.queue_ids[crc32(ordering_key.encode()) % self.ordered_queues]


def check_erasable(name: str, erasable_s: float | None) -> None:
    """Raise MisuseError for a time that keys of bodies cannot be kept."""
    least_s, most_s = ERASABLE_S
    if erasable_s is not None and not least_s <= erasable_s <= most_s:
        raise MisuseError(
            f"topic {name!r} cannot keep keys of its bodies for {erasable_s:g} s: give {shown_duration(least_s)} to "
            f"{shown_duration(most_s)}, as long as anything reads its messages; an erasable topic stays erasable"
        )


class TopicRegistry:
    """Topics by name and producers by (group, fence), each read from the database once.

    Changed and deleted topics are noticed by `refresh_once`, which `run` repeats. After _STALE_S without it, as when
    the process was paused, topics are read again before use.
    """

    def __init__(
        self, pool: Pool, *, auto_create: bool, queues: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._auto_create = auto_create
        self._queues = queues
        self._topics: dict[str, StoredTopic] = {}
        self._producers: dict[tuple[str, bytes], int] = {}
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._soon = asyncio.Event()
        pool.incarnation.on_end(self._forget_all)

    def apply_settings(self, *, auto_create: bool, queues: int) -> None:
        """Set the creation of missing topics and their number of queues, from now on."""
        self._auto_create, self._queues = auto_create, queues

    async def incarnation(self) -> UUID:
        """Return the incarnation of the ids that are returned from now on. Raises BrokerUnavailable.

        To be called before the first look-up.
        """
        return await current_incarnation(self._pool)

    def known(self, name: str) -> StoredTopic | None:
        """Return the topic if it is in memory. Does not read the database."""
        return None if self._is_stale() else self._topics.get(name)

    def _is_stale(self) -> bool:
        return self._monotonic() - self._looked_at > _STALE_S

    async def find_topic(self, name: str) -> StoredTopic | None:
        """Return the topic, or None if it does not exist. Raises InvalidName, BrokerUnavailable."""
        if self._is_stale():
            await self.refresh_once()
        return self._topics.get(name) or await self._load(check_name("topic", name))

    async def ensure(self, name: str) -> StoredTopic:
        """Return the topic; create it if missing and allowed. Raises UnknownTopic, InvalidName, BrokerUnavailable."""
        topic = await self.find_topic(name)
        if topic is None:
            if not self._auto_create:
                raise UnknownTopic(
                    f"topic {name!r} is unknown, and this broker does not create topics: create it with `txmsg topic "
                    f"create {name}`, or check the spelling"
                )
            await self._create([name], self._queues)
            topic = await self._load(name)
            assert topic is not None
        return topic

    async def make_missing(self, names: Collection[str]) -> Mapping[str, TxmsgError]:
        """Create all of these topics that are missing, as `ensure` does each, in one statement.

        When they are more than TOPICS_MADE_MAX, a mistake rather than a wish, or more than the user may create, none is
        created; the result has the error of each. Invalid names are skipped. Raises BrokerUnavailable.
        """
        asked = sorted({name for name in names if name not in self._topics and is_name(name)})
        if len(asked) < 2 or not self._auto_create:
            return {}
        async with session(self._pool) as connection:
            cursor = await connection.execute("select name from txmsg.topic where name = any(%s)", (asked,))
            # Not `find` for each: a request with thousands of misspelt names would cost a round trip per name.
            there = {name for (name,) in await cursor.fetchall()}
        missing = [name for name in asked if name not in there]
        if len(missing) > TOPICS_MADE_MAX:
            return {
                name: UnknownTopic(
                    f"topic {name!r} is unknown, one of {len(missing)} in one request, of which at most "
                    f"{TOPICS_MADE_MAX} are created automatically, and none was: create it with `txmsg topic create "
                    f"{name}`, or check the spelling"
                )
                for name in missing
            }
        try:
            if missing:
                await self._create(missing, self._queues)
        except PermissionDenied as exc:
            return dict.fromkeys(missing, exc)
        return {}

    async def refresh_once(self) -> Sequence[str]:
        """Read topics again that have changed, and forget deleted ones. Returns the names of both."""
        # Taken before the query: a change that is committed while it runs may be missed, and counts as later.
        looked_at = self._monotonic()
        known = list(self._topics.values())
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select known.name from unnest(%s::text[], %s::int[], %s::bigint[], %s::int[]) "
                "known(name, queue_count, version, first_queue) left join txmsg.topic t on t.name = known.name "
                "left join txmsg.queue q on q.id = known.first_queue "
                "where t.id is null or q.topic_id is distinct from t.id "  # gone, and perhaps made again
                "or known.queue_count < t.queue_count or known.version <> t.version",
                (
                    [topic.name for topic in known],
                    [len(topic.queue_ids) for topic in known],
                    [topic.version for topic in known],
                    [topic.queue_ids[0] for topic in known],
                ),
            )
            changed: list[str] = [name for (name,) in await cursor.fetchall()]
        for name in changed:
            self._topics.pop(name, None)
            if topic := await self._load(name):
                _log.info(
                    "topic.changed",
                    "topic %(topic)s has changed; it has %(queues)d queues now",
                    topic=name,
                    queues=len(topic.queue_ids),
                )
            else:
                _log.info("topic.deleted", "topic %(topic)s is gone", topic=name)
        self._looked_at = looked_at
        return changed

    def _forget_all(self, _: str) -> None:
        self._topics.clear()
        self._producers.clear()

    def look_soon(self) -> None:
        """Make `run` read at once: a topic was changed."""
        self._soon.set()

    async def run(self, interval_s: float) -> None:
        """Repeat `refresh_once` until cancelled."""
        await repeat("reading topics", self.refresh_once, interval_s, soon=self._soon)

    async def producer(self, group: str, fence_id: bytes) -> int:
        """Return the id under which halves of this group and fence are stored."""
        key = (group, fence_id)
        if key not in self._producers:
            check_name("group", group)
            fence = UUID(bytes=fence_id) if fence_id else None
            async with same_incarnation(self._pool), session(self._pool) as connection:
                # Two statements: one that inserts and returns would return nothing for the row of another broker that
                # was faster, because its snapshot does not have that row.
                await connection.execute(
                    "insert into txmsg.producer (group_name, fence_id) values (%s, %s) on conflict do nothing",
                    (group, fence),
                )
                cursor = await connection.execute(
                    "select id from txmsg.producer where group_name = %s and fence_id is not distinct from %s",
                    (group, fence),
                )
                ((self._producers[key],),) = await cursor.fetchall()
        return self._producers[key]

    async def _load(self, name: str) -> StoredTopic | None:
        async with same_incarnation(self._pool), session(self._pool) as connection:
            cursor = await connection.execute(
                "select t.name, array_agg(q.id order by q.number), coalesce(t.write_queues, t.queue_count), "
                "t.ordered_queues, t.version, coalesce(t.read_queues, t.queue_count), t.permission, t.send_rate_max, "
                "t.id, t.body_keys_kept_s, t.message_type, "
                "greatest(0, extract(epoch from t.erasable_since - now()))::float8 "
                "from txmsg.topic t join txmsg.queue q on q.topic_id = t.id where t.name = %s group by t.id",
                (name,),
            )
            found = await cursor.fetchone()
        if found is None:
            return None
        _, queue_ids, *settings = found
        # The database returns a duration, which is added to the clock of this process: the clocks of the two may
        # differ.
        settings[-1] = self._monotonic() + (settings[-1] or 0)
        topic = StoredTopic(name, tuple(queue_ids), *settings)
        self._topics[name] = topic
        return topic

    async def create(self, request: CreateTopic) -> CreatedTopic:
        """Create the topic unless it is there.

        Raises InvalidName, MisuseError, TopicExists for other settings, BrokerUnavailable.
        """
        name, erasable_s, message_type = check_name("topic", request.topic), request.erasable_s, request.message_type
        check_erasable(name, erasable_s)
        # Created first and read afterwards: of two brokers that create it, both read the settings of the one that was
        # faster.
        made = await self._create([name], request.queues or self._queues, erasable_s, message_type or ANY_TYPE)
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select queue_count, created_at, body_keys_kept_s, message_type from txmsg.topic where name = %s",
                (name,),
            )
            ((queues, created_at, kept_s, type_),) = await cursor.fetchall()
        if request.queues not in {None, queues}:
            if (request.queues or 0) > queues:
                raise TopicExists(
                    f"topic {name!r} exists with {queues} queues, not {request.queues}: use it as it is, or raise the "
                    f"number with `txmsg topic alter {name} --queues {request.queues}`"
                )
            raise TopicExists(  # queues are never taken away
                f"topic {name!r} exists with {queues} queues, not {request.queues}: use it as it is, or choose "
                "another name"
            )
        if erasable_s not in {None, kept_s}:
            raise TopicExists(
                f"topic {name!r} exists with other settings: change them with `txmsg topic alter {name} --erasable "
                f"{shown_duration(erasable_s or 0)}`"
            )
        if message_type not in {None, type_}:
            raise TopicExists(
                f"topic {name!r} exists for messages of type {type_}: change that with `txmsg topic alter {name} "
                f"--type {message_type}`"
            )
        return CreatedTopic(topic=name, queues=queues, created_at=created_at, created=made)

    async def _create(
        self, names: Sequence[str], queues: int, erasable_s: float | None = None, message_type: str = ANY_TYPE
    ) -> bool:
        # One statement, so that a topic is never seen without its queues; a race loses quietly.
        async with session(self._pool) as connection, connection.transaction():
            cursor = await connection.execute(
                "with made as (insert into txmsg.topic (name, queue_count, ordered_queues, created_by, "
                "body_keys_kept_s, erasable_since, message_type) select name, %(queues)s, %(queues)s, %(by)s, "
                "%(kept)s::float8, case when %(kept)s::float8 > 0 then now() end, %(type)s "
                "from unnest(%(names)s::text[]) name on conflict do nothing returning id, name, queue_count), "
                "queues as (insert into txmsg.queue (topic_id, number) "
                "select made.id, generate_series(0, made.queue_count - 1) from made) select name from made",
                {"names": list(names), "queues": queues, "by": creator(), "kept": erasable_s, "type": message_type},
            )
            made = [name for (name,) in await cursor.fetchall()]
            if made:
                await check_created(connection, "topics")
            after: dict[str, object] = {"queues": queues}
            if erasable_s is not None:
                after["erasable_s"] = erasable_s
            if message_type != ANY_TYPE:
                after["message_type"] = message_type
            for name in made:
                await audit.record(connection, "topic.create", name, after=after)
            return bool(made)
