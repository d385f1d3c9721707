"""The service for senders: validates messages, passes them to the writers, returns a result per item.

Knows no protocol, so that several protocols can share it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from uuid import UUID

from txmsg.broker.admission import Admission
from txmsg.broker.config import BrokerConfig
from txmsg.broker.erasable import ErasableBodies
from txmsg.broker.levels import LeveledWriter
from txmsg.broker.store.batch import DecidedBy, Problem, WriteBatch
from txmsg.broker.store.topics import StoredTopic, TopicRegistry
from txmsg.broker.writer import Writer
from txmsg.errors import (
    BrokerUnavailable,
    DuplicateId,
    InvalidMessage,
    MessageTooLarge,
    OutcomeConflict,
    OutcomeExpired,
    Overloaded,
    PermissionDenied,
    TopicClosed,
    TxmsgError,
    UnknownTopic,
    WrongMessageType,
)
from txmsg.message import (
    ANY_TYPE,
    BODY_SIZE_BYTES_MAX,
    DELAY_MAX,
    FIRST_CHECK_MAX,
    HEADERS_SIZE_BYTES_MAX,
    KEY_SIZE_BYTES_MAX,
    MESSAGES_PER_TRANSACTION_MAX,
    Message,
    QueueId,
    TransactionId,
    check_body_size,
    check_delay,
    check_tag,
    datetime_of_us,
    is_tag,
    now_us,
    type_of_message,
)
from txmsg.message.columns import COLUMNS, OF_BROKER, Columns
from txmsg.message.erasable import SEALED_HEADER
from txmsg.wire.codec import REQUEST_SIZE_BYTES_MAX, unpack_headers

_BORN_AT_US_MAX = 253_402_300_799_000_000  # the year 9999; a client's clock may say anything
_DELAY_US_MAX = DELAY_MAX // timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_NO_TEXT: list[str] = []
_SENT = [(column.name, column.default is None) for column in COLUMNS if column.name not in OF_BROKER]

Problems = Mapping[bytes, TxmsgError]


@dataclass(slots=True)
class OutcomeCounts:
    """Outcomes since this broker started."""

    committed_by_client: int = 0
    rolled_back_by_client: int = 0
    committed_by_check: int = 0
    rolled_back_by_check: int = 0
    committed_by_person: int = 0
    rolled_back_by_person: int = 0
    unknown_by_client: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Transactions refused in requests that were answered, by the code of the error."""

    def refuse(self, problems: Problems) -> None:
        """Count the refusals of one request."""
        if problems:
            self.refused.update(error.code for error in problems.values())


@dataclass(slots=True)
class NotifyService:
    """Sending messages and ending transactions."""

    topics: TopicRegistry
    half_writer: Writer | LeveledWriter
    """For half messages. They take no queue lock, so they never wait behind outcomes, nor outcomes behind them."""
    writer: Writer | LeveledWriter
    """For outcomes and plain messages."""
    body_size_bytes_max: int = BODY_SIZE_BYTES_MAX
    admission: Admission = field(default_factory=Admission)
    """The permissions and rates of topics."""
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    own_queues: Callable[[StoredTopic], Sequence[QueueId]] | None = None
    """The writable queues of a topic that this broker delivers. Unordered messages enter these, so that brokers do not
    wait for each other's locks. None, or an empty result: all queues."""
    bodies: ErasableBodies | None = None
    """Encrypts the bodies of erasable topics."""
    on_unknown: Callable[[], None] | None = None
    """Called when a client reports UNKNOWN for a transaction, so that it is checked soon."""
    on_decided: Callable[[Iterable[bytes]], None] | None = None
    """Called with the transactions whose outcome is on disk: they need no check any more."""

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next message on."""
        self.body_size_bytes_max = config.body_size_bytes_max

    async def store_messages(
        self,
        *,
        group: str,
        fence_id: bytes,
        half: bool,
        batches: Sequence[tuple[str, Columns]],
        denied: Mapping[str, TxmsgError] = {},
    ) -> Problems:
        """Store messages, as halves or for delivery, by topic. On return all except those with problems are on disk.

        denied: topics that the caller may not send to, with the problem of their messages. A problem concerns a whole
        transaction: none of its messages was stored. Errors that concern all are raised: InvalidName for the group,
        Overloaded, BrokerUnavailable.
        """
        if fence_id and len(fence_id) != 16:
            raise InvalidMessage(f"a fence id has 16 bytes, not {len(fence_id)}")
        incarnation = await self.topics.incarnation()  # first: all that is read from here on is of this one
        producer = await self.topics.producer(group, fence_id) if half else 0
        problems: dict[bytes, TxmsgError] = {}
        columns = Columns()
        # One statement for all missing topics, and before the loop: `ensure` would create them one by one.
        missing = await self.topics.make_missing([topic for topic, _ in batches if topic not in denied])
        refused = {**missing, **denied}
        for topic, batch in batches:
            if topic in refused:
                problems.update(dict.fromkeys(batch.transaction_id, refused[topic]))
            else:
                await self._add(columns, topic, batch, producer, problems)
        if half:
            problems |= _incomplete(columns)
        if problems:
            columns = columns.only(set(columns.transaction_id) - problems.keys())
        size_bytes = sum(map(len, columns.body))
        if (
            size_bytes > REQUEST_SIZE_BYTES_MAX and len(columns.transaction_id) > 1
        ):  # a single message has its own limit
            raise MessageTooLarge(
                f"{size_bytes} bytes of bodies in one request: at most {REQUEST_SIZE_BYTES_MAX} fit, send several"
            )
        # About 100 bytes for ids and columns, which the bound on waiting bytes has to count, too.
        size_bytes += 100 * len(columns.transaction_id)
        if half:
            stored = await self.half_writer.write(WriteBatch(half=columns, incarnation=incarnation), size_bytes)
        else:
            stored = await self.writer.write(WriteBatch(plain=columns, incarnation=incarnation), size_bytes)
        problems |= _errors_of(stored, columns.transaction_id)
        self.counts.refuse(problems)
        return problems

    async def _add(
        self, columns: Columns, topic_name: str, batch: Columns, producer: int, problems: dict[bytes, TxmsgError]
    ) -> None:
        """Append the messages of a topic to `columns`, and add those that cannot be stored to `problems`."""
        count = len(batch.transaction_id)
        for name, is_required in _SENT:
            length = len(getattr(batch, name))
            if length != count and (is_required or length):
                raise InvalidMessage(f"column {name} has {length} entries for {count} messages")
        try:
            # `known` first: a coroutine per topic and request would cost more than the look-up in memory.
            topic = self.topics.known(topic_name) or await self.topics.ensure(topic_name)
            await self.admission.admit(topic, count)
        except (UnknownTopic, InvalidMessage, TopicClosed, PermissionDenied, Overloaded) as exc:
            problems.update(dict.fromkeys(batch.transaction_id, exc))
            return
        if rows := _doubtful(batch, self.body_size_bytes_max):
            problems.update(_invalid(topic_name, batch, rows, self.body_size_bytes_max))
        if topic.message_type != ANY_TYPE:
            problems.update(_of_other_types(topic, batch, is_half=bool(producer)))
        if topic.erasable_s is not None and self.bodies is not None:
            batch = batch.only(set(batch.transaction_id) - problems.keys())
            problems.update(await self.bodies.seal(topic, batch))
        columns.extend(batch)
        columns.queue += self._queues(topic, batch)
        columns.producer += [producer] * len(batch.transaction_id)

    def _queues(self, topic: StoredTopic, batch: Columns) -> list[QueueId]:
        """Return the queue of each message.

        An ordering key has one queue; others enter queues that this broker delivers. Chosen by id, so that a repeated
        message meets its first copy under the same queue's lock.
        """
        all_queues = topic.queue_ids[: topic.write_queues]
        own = self.own_queues(topic) if self.own_queues is not None else ()
        queues = own or all_queues
        chosen = [queues[(id_bytes[-2] << 8 | id_bytes[-1]) % len(queues)] for id_bytes in batch.transaction_id]
        for due_us in (batch.deliver_at_us, batch.deliver_after_us):
            # Among all queues: it may become due on another broker, and then only the lock of its queue tells a repeat
            # from the first copy.
            for row, (transaction_id, is_delayed) in enumerate(zip(batch.transaction_id, due_us, strict=False)):
                if is_delayed:
                    chosen[row] = all_queues[(transaction_id[-2] << 8 | transaction_id[-1]) % len(all_queues)]
        for row, ordering_key in enumerate(batch.ordering_key):
            if ordering_key:
                chosen[row] = topic.queue_of(ordering_key)
        return chosen

    async def end_transactions(
        self,
        *,
        commit: Sequence[bytes] = (),
        rollback: Sequence[bytes] = (),
        unknown: Sequence[bytes] = (),
        by: DecidedBy = DecidedBy.CLIENT,
        group: str = "",
    ) -> Problems:
        """Make outcomes final, and have unknown ones checked soon.

        On return all except those with problems are on disk. group: the producer group that the transactions must
        belong to, else they count as unknown; "" is any. Idempotent. A commit of ordered messages whose key is held
        back is final too: they enter their queue when the key is free. A transaction named with both outcomes is a
        problem. Raises Overloaded, BrokerUnavailable.
        """
        torn = set(commit).intersection(rollback)
        batch = WriteBatch(
            commit=_unique(commit, torn),
            rollback=_unique(rollback, torn),
            check=_unique(unknown, {*commit, *rollback}) if unknown else [],
            decided_by={} if by is DecidedBy.CLIENT else dict.fromkeys([*commit, *rollback], by),
        )
        ends = batch.ends()
        if group:
            batch.groups = dict.fromkeys(ends, group)
        problems: dict[bytes, TxmsgError] = {
            transaction_id: InvalidMessage(
                f"transaction {UUID(bytes=transaction_id)} is named with both outcomes in one request"
            )
            for transaction_id in torn
        }
        problems |= _errors_of(await self.writer.write(batch, 40 * len(ends)), ends, batch.commit)
        if unknown and self.on_unknown is not None:
            self.on_unknown()
        if self.on_decided is not None:
            self.on_decided(id_bytes for id_bytes in chain(batch.commit, batch.rollback) if id_bytes not in problems)
        committed, rolled_back = len(batch.commit), len(batch.rollback)
        if problems:
            committed -= sum(transaction_id in problems for transaction_id in batch.commit)
            rolled_back -= sum(transaction_id in problems for transaction_id in batch.rollback)
        if by is DecidedBy.PERSON:
            self.counts.committed_by_person += committed
            self.counts.rolled_back_by_person += rolled_back
        else:
            self.counts.committed_by_client += committed
            self.counts.rolled_back_by_client += rolled_back
        self.counts.unknown_by_client += len(batch.check)
        self.counts.refuse(problems)
        return problems


@dataclass(slots=True)
class CheckResolver:
    """Writes the outcomes of checks. Implements checker.Resolver."""

    writer: Writer | LeveledWriter
    counts: OutcomeCounts

    async def end_transactions(
        self, *, commit: Sequence[TransactionId] = (), rollback: Sequence[TransactionId] = ()
    ) -> None:
        """Make these outcomes final. Raises the first problem after all others were written."""
        batch = WriteBatch(commit=[known.bytes for known in commit], rollback=[known.bytes for known in rollback])
        batch.decided_by = dict.fromkeys(batch.ends(), DecidedBy.CHECK)
        problems = _errors_of(await self.writer.write(batch, 40 * len(batch)), batch.ends(), batch.commit)
        self.counts.committed_by_check += sum(transaction_id not in problems for transaction_id in batch.commit)
        self.counts.rolled_back_by_check += sum(transaction_id not in problems for transaction_id in batch.rollback)
        for error in problems.values():
            raise error


def _unique(ids: Sequence[bytes], without: Set[bytes]) -> list[bytes]:
    unique = dict.fromkeys(ids)
    return [id_bytes for id_bytes in unique if id_bytes not in without] if without else list(unique)


def _doubtful(batch: Columns, body_size_bytes_max: int) -> Sequence[int]:
    """Return the rows that need a closer check: those with headers, or all if any of the others is invalid."""
    if _all_valid_but_headers(batch, body_size_bytes_max):
        return [row for row, packed in enumerate(batch.headers) if packed]
    return range(len(batch.transaction_id))


def _all_valid_but_headers(batch: Columns, body_size_bytes_max: int) -> bool:
    """Return True if everything except headers is valid, by quick checks of whole columns."""
    return (
        # Whole columns by max, min and join, which run in C (decision 2). Keys are measured in characters, against a
        # quarter of the bytes allowed: UTF-8 takes up to four for each.
        max(map(len, batch.body), default=0) <= body_size_bytes_max
        and min(batch.born_at_us, default=0) >= 0
        and max(batch.born_at_us, default=0) <= _BORN_AT_US_MAX
        and max(batch.n, default=0) < MESSAGES_PER_TRANSACTION_MAX
        and all(is_tag(tag) for tag in {*batch.tag} if tag)
        and max(map(len, batch.key or _NO_TEXT), default=0) <= KEY_SIZE_BYTES_MAX // 4
        and "\0" not in "".join(batch.key)
        and max(map(len, batch.ordering_key or _NO_TEXT), default=0) <= KEY_SIZE_BYTES_MAX // 4
        and "\0" not in "".join(batch.ordering_key)
        and min(batch.deliver_at_us, default=0) >= 0
        and max(batch.deliver_at_us, default=0) <= now_us() + _DELAY_US_MAX
        and min(batch.deliver_after_us, default=0) >= 0
        and max(batch.deliver_after_us, default=0) <= _DELAY_US_MAX
        and not (any(batch.deliver_at_us) and any(batch.deliver_after_us))
        and not (any(batch.deliver_at_us) and any(batch.ordering_key))
        and not (any(batch.deliver_after_us) and any(batch.ordering_key))
        and max(batch.first_check_ms, default=0) <= FIRST_CHECK_MAX // _MILLISECOND
    )


def _invalid(topic: str, batch: Columns, rows: Sequence[int], body_size_bytes_max: int) -> dict[bytes, TxmsgError]:
    """Return the transactions of these rows that cannot be stored, with the reason."""
    problems: dict[bytes, TxmsgError] = {}
    for row in rows:
        try:
            if not 0 <= batch.born_at_us[row] <= _BORN_AT_US_MAX:
                raise InvalidMessage(f"born_at_us={batch.born_at_us[row]} is not between 1970 and the year 9999")
            if batch.n and batch.n[row] >= MESSAGES_PER_TRANSACTION_MAX:
                raise InvalidMessage(f"a transaction holds at most {MESSAGES_PER_TRANSACTION_MAX} messages")
            if batch.headers and len(batch.headers[row]) > 2 * HEADERS_SIZE_BYTES_MAX:
                raise InvalidMessage(f"headers of {len(batch.headers[row])} bytes are too large")
            deliver_at_us = batch.deliver_at_us[row] if batch.deliver_at_us else 0
            deliver_after_us = batch.deliver_after_us[row] if batch.deliver_after_us else 0
            if batch.tag and batch.tag[row]:
                check_tag(batch.tag[row])
            check_body_size(batch.body[row], topic, body_size_bytes_max)
            headers = unpack_headers(batch.headers[row] if batch.headers else b"")
            if SEALED_HEADER in headers:
                raise InvalidMessage(f"header {SEALED_HEADER!r} is the brokers' own: leave it out")
            Message(
                topic,
                batch.body[row],
                key=(batch.key[row] if batch.key else "") or None,
                headers=headers,
                ordering_key=(batch.ordering_key[row] if batch.ordering_key else "") or None,
                deliver_at=datetime_of_us(deliver_at_us) if deliver_at_us else None,
                deliver_after=timedelta(microseconds=deliver_after_us) if deliver_after_us else None,
                first_check_after=(batch.first_check_ms[row] if batch.first_check_ms else 0) * _MILLISECOND,
            )
            check_delay(topic, deliver_at_us - now_us())
            check_delay(topic, deliver_after_us)
        except TxmsgError as exc:
            problems[batch.transaction_id[row]] = exc
    return problems


def _of_other_types(topic: StoredTopic, batch: Columns, *, is_half: bool) -> dict[bytes, TxmsgError]:
    """Return the transactions with messages of another type than the topic accepts, with the reason."""
    problems: dict[bytes, TxmsgError] = {}
    for row, transaction_id in enumerate(batch.transaction_id):
        found = type_of_message(
            is_half=is_half,
            ordering_key=batch.ordering_key[row] if batch.ordering_key else "",
            is_delayed=any(due_us[row] for due_us in (batch.deliver_at_us, batch.deliver_after_us) if due_us),
        )
        if found != topic.message_type:
            problems[transaction_id] = WrongMessageType(
                f"topic {topic.name!r} takes messages of type {topic.message_type}, and this one is {found}: send it "
                f"to another topic, or let this one take any with `txmsg topic alter {topic.name} --type any`"
            )
    return problems


def _incomplete(columns: Columns) -> dict[bytes, TxmsgError]:
    """Return the transactions whose messages are not numbered 0, 1, 2, ... without a gap, with the error.

    Message 0 carries the checks of the transaction.
    """
    if not any(columns.n):
        return {}
    numbers: defaultdict[bytes, set[int]] = defaultdict(set)
    for transaction_id, n in zip(columns.transaction_id, columns.n, strict=True):
        numbers[transaction_id].add(n)
    return {
        transaction_id: InvalidMessage(
            f"the half messages of transaction {UUID(bytes=transaction_id)} are numbered {sorted(found)[:10]}: send "
            "all of them in one request, numbered from 0 without a gap"
        )
        for transaction_id, found in numbers.items()
        if len(found) != max(found) + 1
    }


def _errors_of(
    stored: Mapping[bytes, Problem], ids: Sequence[bytes], commit: Sequence[bytes] = ()
) -> dict[bytes, TxmsgError]:
    """Return the writer's problems with these ids, as errors. commit: those of them that were to be committed."""
    if not stored:
        return {}
    to_commit = set(commit)
    problems = {transaction_id: stored[transaction_id] for transaction_id in ids if transaction_id in stored}
    return {
        transaction_id: _error_of(
            problem, UUID(bytes=transaction_id), "rolled back" if transaction_id in to_commit else "committed"
        )
        if isinstance(problem, str)
        else problem
        for transaction_id, problem in problems.items()
    }


def _error_of(kind: str, transaction_id: UUID, other_outcome: str) -> TxmsgError:
    match kind:
        case "other":
            return DuplicateId(f"id {transaction_id} was stored before with another content: use a new id")
        case "resolved":
            return OutcomeConflict(f"transaction {transaction_id} is decided already; this late copy was not stored")
        case "conflict":
            return OutcomeConflict(
                f"transaction {transaction_id} already has the other outcome, which is final: it is {other_outcome}; "
                f"`txmsg message trace {transaction_id}` shows since when, and by whom"
            )
        case "expired":
            return OutcomeExpired(
                f"transaction {transaction_id} is not known: it was never stored, or it was decided longer ago than "
                "the broker remembers"
            )
        case "busy":
            return BrokerUnavailable(f"transaction {transaction_id} is being stored at this moment: try again")
    return InvalidMessage(f"the database refuses transaction {transaction_id}; the broker's log says why")
