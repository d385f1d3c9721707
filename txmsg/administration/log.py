"""Administration of a log, in a directory or at the address of its server.

Dead letters of a group are in %DLQ%GROUP in the order of their death; below the group's own offset there, all are dealt
with. So to deal with some in the middle, those before them, which stay dead, are appended again at the end. A crash in
between may duplicate some, and loses none.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, NoReturn

from txmsg.administration.dead_letters import (
    AttemptFailure,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    Selection,
)
from txmsg.administration.groups import (
    CheckChange,
    CheckSettings,
    GroupChange,
    GroupDeletion,
    GroupDetails,
    GroupList,
    GroupQuery,
    GroupQueue,
    GroupSettings,
    GroupSummary,
    LiveGroupMember,
    RetryQuery,
    Seek,
    SeekPlan,
    TopicLag,
)
from txmsg.errors import (
    CorruptLog,
    MisuseError,
    ProtocolError,
    UnknownGroup,
    UnknownTopic,
    UnreadableMessage,
    shown,
)
from txmsg.message import ReceivedMessage, moment, now_us, parse_id, us_of_datetime
from txmsg.metaq.consumer.retries import Tried, again_of, dead_again_of, tried_of
from txmsg.metaq.interface import (
    DEAD_LETTERS,
    RETRIES,
    GroupState,
    LogAccess,
    LogGroupSettings,
    LogQueue,
    QueueState,
    offset_after,
    offsets_of,
)
from txmsg.metaq.interface import GroupMember as Membership
from txmsg.runtime.logs import EventLog
from txmsg.wire.start import Start

_log = EventLog(__name__)

_NO_RETRIES = "retries of a log are the work of its members: `txmsg metaq` reads those of GROUP in topic %RETRY%GROUP"
_PAGE = re.compile(r"(\d{1,17})\.(\d{1,18})\.(.+)")


class LogAdministration:
    """The operations of `Administration` on a log."""

    def __init__(self, log: LogAccess) -> None:
        self._log = log

    # ---- groups

    def list_groups(self, query: GroupQuery) -> GroupList:
        limit, wanted = query.limit, query.contains.lower()
        names = sorted(name for name in self._log.groups() if name > query.after and wanted in name.lower())
        groups: list[GroupSummary] = []
        for name in names[:limit]:
            with suppress(UnknownGroup):  # Deleted since it was listed, like a broadcasting member's.
                groups.append(self._summary(self._log.group(name)))
        return GroupList(groups=groups, producer_groups=[], next=names[limit - 1] if len(names) > limit else None)

    def show_group(self, group: str) -> GroupDetails:
        state = self._log.group(group)
        summary = self._summary(state)
        return GroupDetails(
            settings=_settings(state.settings),
            waiting=summary.waiting,
            retrying=summary.retrying,
            dead=summary.dead,
            members=[
                LiveGroupMember(id=member.id, topics=member.topics, strategy=member.strategy)
                for member in state.members
            ],
            queues=[_queue(queue) for queue in state.queues],
        )

    def show_checks(self, group: str) -> CheckSettings | None:
        return None

    def alter_group(self, change: GroupChange) -> GroupSettings:
        known = GroupChange(
            group=change.group,
            stopped=change.stopped,
            deliver_rate_max=change.deliver_rate_max,
            concurrency=change.concurrency,
        )
        if change != known:
            raise MisuseError(
                f"group {change.group!r} of a log can be stopped, and has a rate and a concurrency: retries are "
                "options of each subscription, and it is created when its first member joins"
            )
        return _settings(
            self._log.alter_group(
                change.group,
                stopped=change.stopped,
                concurrency=change.concurrency,
                rate_per_s=change.deliver_rate_max,
            )
        )

    def alter_checks(self, change: CheckChange) -> NoReturn:
        raise MisuseError("groups of a log have no half messages to check: producer groups are those of Notify")

    def seek(self, seek: Seek) -> SeekPlan:
        if seek.again:
            raise MisuseError("a log has no generations: --again is for groups of Notify")
        known = {found.queue: found for found in self._log.group(seek.group).queues}
        offsets = self._offsets(seek.topic, seek.queue, seek.to)
        if not seek.dry_run:
            self._log.seek(seek.group, offsets)
            known = {found.queue: found for found in self._log.group(seek.group).queues}
        kept = self._log.ranges([unread for unread in offsets if unread not in known])
        unread = {key: QueueState(key, owner=None, offset=None, kept=found) for key, found in kept.items()}
        return SeekPlan(queues=[_queue((known | unread)[key]) for key in offsets], to=list(offsets.values()))

    def list_retries(self, query: RetryQuery) -> NoReturn:
        raise MisuseError(_NO_RETRIES)

    def retry_now(self, group: str, id: str = "") -> NoReturn:
        raise MisuseError(_NO_RETRIES)

    def skip_retry(self, group: str, id: str) -> NoReturn:
        raise MisuseError(_NO_RETRIES)

    def _offsets(self, topic: str, queue: int | None, to: Start) -> dict[LogQueue, int]:
        numbers = self._log.queues_of(topic)
        if not numbers or (queue is not None and queue not in numbers):
            there = f"its queues are {', '.join(map(str, numbers))}" if numbers else "it is not in this log"
            raise UnknownTopic(f"topic {topic!r} has no such queue to seek: {there}")
        queues = [LogQueue(topic, number) for number in ([queue] if queue is not None else numbers)]
        if to.kind == "offset" and len(queues) > 1:
            raise MisuseError(f"offset {to.value} needs a queue, and topic {topic!r} has {len(queues)}: give --queue")
        return offsets_of(self._log, queues, to)

    def delete_group(self, deletion: GroupDeletion) -> None:
        group = deletion.group
        summary = self._summary(self._log.group(group))
        if (summary.retrying or summary.dead) and not deletion.force:
            raise MisuseError(
                f"group {group!r} has {summary.retrying} messages in retry and {summary.dead} dead letters: --force "
                "deletes it with them"
            )
        if not deletion.dry_run:
            self._log.delete_group(group)
        elif summary.members:
            raise MisuseError(f"group {group!r} has {summary.members} members: stop them first")

    def _summary(self, state: GroupState) -> GroupSummary:
        # With the topics of members, in which the group may have no offset yet.
        topics = {topic: 0 for member in state.members for topic in member.topics}
        for queue in state.queues:
            topics[queue.queue.topic] = topics.get(queue.queue.topic, 0) + _waiting(queue)
        lags = [
            TopicLag(topic=topic, waiting=waiting)
            for topic, waiting in sorted(topics.items())
            if not topic.startswith((RETRIES, DEAD_LETTERS))
        ]
        return GroupSummary(
            group=state.group,
            members=len(state.members),
            waiting=sum(lag.waiting for lag in lags),
            retrying=self._left(state, RETRIES + state.group),
            dead=self._left(state, DEAD_LETTERS + state.group),
            topics=lags,
            stopped=state.settings.stopped,
        )

    def _left(self, state: GroupState, topic: str) -> int:
        """Return the number of pending messages in one of the group's own topics, also in queues never owned yet."""
        done = {queue.queue: queue.offset or 0 for queue in state.queues}
        kept = self._log.ranges([LogQueue(topic, number) for number in self._log.queues_of(topic)])
        return sum(end - max(begin, done.get(queue, 0)) for queue, (begin, end) in kept.items())

    # ---- dead letters

    def list_dead_letters(self, query: DeadLetterQuery) -> DeadLetterPage:
        limit, after = query.limit, _rank_of(query.after) if query.after else _Rank(0, -1, "")
        # One more than the page: it shows whether there is a next one.
        found = list(islice(self._letters(query.which, after), limit + 1))
        following = "{}.{}.{}".format(*found[limit - 1][0]) if len(found) > limit else None
        return DeadLetterPage(letters=[_value(letter) for _, letter in found[:limit]], next=following)

    def select(self, which: DeadLetterFilter) -> Selection:
        fits = _fits(which)
        return Selection(
            which=which, count=sum(fits(letter) for group in self._groups(which) for letter in self._letters_of(group))
        )

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        if rate is not None:
            raise MisuseError("a log redrives dead letters all at once: --rate is for groups of Notify")
        return self._deal(selection.which, again=True)

    def purge(self, selection: Selection) -> Iterator[int]:
        return self._deal(selection.which, again=False)

    def _letters(self, which: DeadLetterFilter, after: _Rank) -> Iterator[tuple[_Rank, _Letter]]:
        fits = _fits(which)
        ranked = heapq.merge(*(self._ranked(group, after) for group in self._groups(which)))
        return ((rank, letter) for rank, letter in ranked if fits(letter))

    def _ranked(self, group: str, after: _Rank) -> Iterator[tuple[_Rank, _Letter]]:
        """Yield the dead letters of a group behind a rank, each with its own.

        Ranks never go back, although clocks may.
        """
        rank = after if group == after.group else _Rank(0, -1, group)
        for letter in self._letters_of(group, rank.offset + 1):
            rank = _Rank(max(rank.died_at_us, letter.copy.stored_at_us), letter.offset, group)
            if rank > after:
                yield rank, letter

    def _groups(self, which: DeadLetterFilter) -> list[str]:
        if which.group:
            return [which.group]
        return [group for group in self._log.groups() if self._log.queues_of(DEAD_LETTERS + group)]

    def _letters_of(self, group: str, begin: int = 0) -> Iterator[_Letter]:
        """Yield the dead letters of a group from this offset on, without unreadable ones. Raises UnknownGroup."""
        dead = LogQueue(DEAD_LETTERS + group, 0)
        done = next((state.offset for state in self._log.group(group).queues if state.queue == dead), None)
        kept = self._log.ranges([dead])[dead]
        for chunk in self._chunks(group, max(begin, done or 0, kept.begin), kept.end, skips_unreadable=True):
            yield from chunk.letters

    def _chunks(self, group: str, begin: int, end: int, *, skips_unreadable: bool = False) -> Iterator[_Chunk]:
        """Yield all dead letters between these offsets in chunks. Raises CorruptLog if they cannot be read.

        skips_unreadable: for listings only. Other callers move the group's offset past a chunk, so none may be missed.
        """
        dead = LogQueue(DEAD_LETTERS + group, 0)
        while begin < end and (found := self._log.fetch({dead: begin})):
            fetched = found[0].readable()
            if (error := fetched.error) is not None:
                is_unreadable = isinstance(error, UnreadableMessage)
                following = offset_after(error, begin)
                if following is None or (is_unreadable and not skips_unreadable):
                    raise error
                if is_unreadable:
                    _log.warning("group.dead_letter_unreadable", "a dead letter is left out: %(error)s", error=error)
                begin = following  # Missing offsets were removed by a repair.
                continue
            for batch in fetched.batches:
                letters = [_letter(group, copy) for copy in batch.messages()]
                begin = min(end, batch.end_offset)
                yield _Chunk([letter for letter in letters if letter.offset < end], begin)

    def _deal(self, which: DeadLetterFilter, *, again: bool) -> Iterator[int]:
        fits = _fits(which)
        for group in self._groups(which):
            # Only up to the last wanted letter: those behind it stay where they are.
            last = max((letter.offset for letter in self._letters_of(group) if fits(letter)), default=None)
            if last is None:
                continue
            dead = LogQueue(DEAD_LETTERS + group, 0)
            member = self._log.join(group, ())  # Without topics: other members keep the queues that they own.
            try:
                offset = member.take_queues([dead]).get(dead)
                if offset is None:
                    # The queue has one owner at a time: two processes that move its offset would lose letters of each
                    # other.
                    raise MisuseError(
                        f"dead letters of group {group} are being dealt with by another process: try again later"
                    )
                for chunk in self._chunks(group, max(offset, self._log.ranges([dead])[dead].begin), last + 1):
                    yield self._deal_with(member, chunk, fits, again=again)
            finally:
                member.leave({})

    def _deal_with(self, member: Membership, chunk: _Chunk, fits: Callable[[_Letter], bool], *, again: bool) -> int:
        """Append wanted letters to the retries (or drop them) and others to the end, then move the group past all."""
        wanted = [letter for letter in chunk.letters if fits(letter)]
        others = [letter.copy for letter in chunk.letters if not fits(letter)]
        if wanted and again:
            self._log.append([again_of(member.group, [letter.tried for letter in wanted], now_us())])
        if others:
            self._log.append([dead_again_of(member.group, others)])
        # The offset last: a crash before it leaves the chunk in place, so letters are duplicated rather than lost.
        member.store({LogQueue(DEAD_LETTERS + member.group, 0): chunk.end})
        return len(wanted)


class _Rank(NamedTuple):
    """The position of a dead letter among those of all groups, the longest dead first."""

    died_at_us: int
    offset: int
    group: str


class _Letter(NamedTuple):
    """A dead letter in the log. offset: of the copy."""

    group: str
    offset: int
    tried: Tried
    copy: ReceivedMessage


class _Chunk(NamedTuple):
    letters: list[_Letter]
    end: int


def _rank_of(page: str) -> _Rank:
    found = _PAGE.fullmatch(page)
    if found is None:
        raise ProtocolError(f"{shown(page)} is not a page of dead letters: give the last value of `next`")
    return _Rank(int(found[1]), int(found[2]), found[3])


def _letter(group: str, copy: ReceivedMessage) -> _Letter:
    tried = Tried(copy)  # The fallback for a record that another program has written there.
    with suppress(CorruptLog):
        tried = tried_of(copy)
    assert copy.offset is not None
    return _Letter(group, copy.offset, tried, copy)


def _fits(which: DeadLetterFilter) -> Callable[[_Letter], bool]:
    """Return a predicate of dead letters for the filter. Raises InvalidMessage for an invalid id."""
    transaction_id, n = parse_id(which.id) if which.id else (None, None)
    since_us = us_of_datetime(which.since) if which.since else 0
    until_us = us_of_datetime(which.until) if which.until else None
    error = which.error.casefold()

    def fits(letter: _Letter) -> bool:
        message = letter.tried.message
        return (
            which.topic in {"", message.topic}
            and which.key in {"", message.key}
            and error in (letter.tried.errors or ("",))[-1].casefold()
            and transaction_id in {None, message.transaction_id}
            and n in {None, message.n}
            and since_us <= letter.copy.stored_at_us
            and (until_us is None or letter.copy.stored_at_us < until_us)
        )

    return fits


def _value(letter: _Letter) -> DeadLetter:
    message, errors = letter.tried.message, letter.tried.errors
    return DeadLetter(
        id=message.id,
        group=letter.group,
        topic=message.topic,
        queue=message.queue,
        offset=message.offset,
        key=message.key,
        tag=message.tag,
        ordering_key=message.ordering_key,
        born_at=moment(message.born_at_us),
        stored_at=moment(message.stored_at_us),
        died_at=moment(letter.copy.stored_at_us),
        attempts=message.attempt,
        generation=message.generation,
        last_error=errors[-1] if errors else None,
        body_size_bytes=len(message.body),
        headers=dict(message.headers),
        body=message.body,
        failures=[AttemptFailure(attempt=attempt, error=error) for attempt, error in enumerate(errors, 1)],
    )


def _settings(settings: LogGroupSettings) -> GroupSettings:
    return GroupSettings(
        stopped=settings.stopped, deliver_rate_max=settings.rate_per_s, concurrency=settings.concurrency
    )


def _waiting(state: QueueState) -> int:
    return state.kept.end - max(state.offset or 0, state.kept.begin)


def _queue(state: QueueState) -> GroupQueue:
    return GroupQueue(
        topic=state.queue.topic,
        queue=state.queue.queue,
        owner=state.owner,
        next_offset=state.offset,
        begin=state.kept.begin,
        end=state.kept.end,
        waiting=_waiting(state),
    )
