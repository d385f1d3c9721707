"""Dead letters of a group: looked at, handed to the group again, or given up. Alike for a path and an address.

They stand in %DLQ%GROUP in the order in which they died, and the group's own offset there says before which one all are
dealt with. So dealing with a few in the middle puts those before them, which stay dead, to the end. A crash in between
may leave some twice, and loses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from txmsg.errors import CorruptLog, MisuseError, OffsetsMissing
from txmsg.message import ReceivedMessage, TransactionId, now_us
from txmsg.metaq.access import DEAD_LETTERS, GroupMember, LogAccess, QueueId
from txmsg.metaq.consumer.retries import Tried, again_of, dead_again_of, tried_of

__all__ = ["DeadLetter", "Which", "dead_letters", "purge", "redrive"]


class DeadLetter(NamedTuple):
    """A message whose retries are used up. offset: of the copy, which is older."""

    offset: int
    died_at_us: int
    tried: Tried
    copy: ReceivedMessage

    @property
    def message(self) -> ReceivedMessage:
        """The message as its handler got it last."""
        return self.tried.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Some dead letters. What is not said fits all of them."""

    topic: str | None = None
    key: str | None = None
    error: str = ""
    """Stands in the last error."""
    id: tuple[TransactionId, int | None] | None = None
    """Of the message, or with None of its transaction."""
    since_us: int = 0
    """Dead since then."""
    until_us: int | None = None
    """Dead before then."""

    def fits(self, letter: DeadLetter) -> bool:
        """Whether it is one of them."""
        message = letter.message
        return (
            self.topic in {None, message.topic}
            and self.key in {None, message.key}
            and self.error in (letter.tried.errors or ("",))[-1]
            and (self.id is None or self.id[0] == message.transaction_id)
            and (self.id is None or self.id[1] in {None, message.n})
            and self.since_us <= letter.died_at_us
            and (self.until_us is None or letter.died_at_us < self.until_us)
        )


_ALL = Which()


def dead_letters(access: LogAccess, group: str, which: Which = _ALL) -> Iterator[DeadLetter]:
    """The dead letters of a group, the longest dead first. Raises UnknownGroup."""
    queue = _queue_of(group)
    begin = next((each.offset for each in access.group(group).queues if each.queue == queue), None)
    kept = access.ranges([queue])[queue]
    for chunk in _chunks(access, queue, max(begin or 0, kept.begin), kept.end):
        yield from filter(which.fits, chunk.letters)


def redrive(access: LogAccess, group: str, which: Which = _ALL) -> int:
    """Hands dead letters to their group again, as if they were new to it; how many.

    Raises UnknownGroup, and MisuseError while somebody else deals with them.
    """
    return _deal(access, group, which, again=True)


def purge(access: LogAccess, group: str, which: Which = _ALL) -> int:
    """Gives dead letters up, for good; how many. For the rest see `redrive`."""
    return _deal(access, group, which, again=False)


class _Chunk(NamedTuple):
    letters: list[DeadLetter]
    end: int


def _queue_of(group: str) -> QueueId:
    return QueueId(DEAD_LETTERS + group, 0)


def _chunks(access: LogAccess, queue: QueueId, begin: int, end: int) -> Iterator[_Chunk]:
    """All dead letters between these offsets, some at a time. Raises CorruptLog where they are damaged."""
    while begin < end and (found := access.fetch({queue: begin})):
        [fetched] = found
        if isinstance(fetched.error, OffsetsMissing):
            begin = fetched.error.end  # a repair has taken them out
            continue
        if fetched.error is not None:
            raise fetched.error
        for batch in fetched.batches:
            letters = [_letter(each) for each in batch.messages()]
            begin = min(end, batch.end_offset)
            yield _Chunk([each for each in letters if each.offset < end], begin)


def _letter(copy: ReceivedMessage) -> DeadLetter:
    tried = Tried(copy)  # what somebody else has put there
    with suppress(CorruptLog):
        tried = tried_of(copy)
    assert copy.offset is not None
    return DeadLetter(copy.offset, copy.stored_at_us, tried, copy)


def _deal(access: LogAccess, group: str, which: Which, *, again: bool) -> int:
    last = max((each.offset for each in dead_letters(access, group, which)), default=None)
    if last is None:
        return 0
    queue = _queue_of(group)
    member = access.join(group, ())  # it reads nothing: others keep what they own
    try:
        offset = member.take([queue]).get(queue)
        if offset is None:
            raise MisuseError(f"dead letters of group {group} are being dealt with by somebody else: try again later")
        done, begin = 0, max(offset, access.ranges([queue])[queue].begin)
        for chunk in _chunks(access, queue, begin, last + 1):
            done += _deal_with(access, member, chunk, which, again=again)
        return done
    finally:
        member.leave({})


def _deal_with(access: LogAccess, member: GroupMember, chunk: _Chunk, which: Which, *, again: bool) -> int:
    """Those that are wanted go to the retries, or nowhere; the others to the end; then the group goes past all."""
    wanted = [each for each in chunk.letters if which.fits(each)]
    others = [each.copy for each in chunk.letters if not which.fits(each)]
    if wanted and again:
        access.append([again_of(member.group, [each.tried for each in wanted], now_us())])
    if others:
        access.append([dead_again_of(member.group, others)])
    member.store({_queue_of(member.group): chunk.end})
    return len(wanted)
