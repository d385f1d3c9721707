"""Failed messages are retried after their back-off and finally become dead letters; others wait only if ordered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metaq.consumers import Seen, stored
from tests.metaq.logs import fill
from tests.waiting import until_async
from txmsg.consumer.failures import HandlerFailure, Retry
from txmsg.errors import BrokerUnavailable, CorruptLog, MisuseError, StorageError
from txmsg.message import ReceivedMessage
from txmsg.metaq.consumer import workers
from txmsg.metaq.consumer.async_pull_consumer import AsyncPullConsumer
from txmsg.metaq.consumer.options import LogOptions
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.consumer.retries import Tried, appends_of, tried_of
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Append, Log
from txmsg.runtime.backoff import DELAYS_S, Backoff
from txmsg.wire.start import Start

T0 = LogQueue("t", 0)
RETRY = LogQueue("%RETRY%g", 0)
DEAD = LogQueue("%DLQ%g", 0)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def consumer_of(
    root: Path, seen: Seen, clock: Clock, *, ordered: bool = False, retry: Retry | None = None
) -> AsyncPushConsumer:
    consumer = AsyncPushConsumer(root, "g", of_log=LogOptions(ordered=ordered))
    consumer._clock, consumer._balance_s = clock, 0.01
    consumer.subscribe("t", retry=retry)(seen)
    return consumer


def copies(root: Path, queue: LogQueue) -> list[Tried]:
    """Return the contents of a queue of retries or dead letters."""
    with open_log(root) as access:
        return [
            tried_of(message)
            for each in access.fetch({queue: 0})
            for batch in each.batches
            for message in batch.messages()
        ]


async def test_failing_message_is_retried_after_each_back_off_and_then_is_a_dead_letter(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    seen, clock = Seen(lambda message: message.offset == 1), Clock()
    async with consumer_of(tmp_path, seen, clock) as consumer:
        await until_async(lambda: seen.attempts == [(0, 1), (1, 1), (2, 1)])
        lanes = consumer._balance.lanes
        for tries in range(1, 17):
            level, count = LogQueue("%RETRY%g", tries - 1), len(seen.messages)
            await until_async(lambda: level in lanes and (lanes[level].blocked_until or len(seen.messages) > count))  # noqa: B023
            [copy] = copies(tmp_path, level)
            assert copy.due_at_us == round((clock.now + DELAYS_S[tries - 1]) * 1e6)
            assert len(seen.messages) == 2 + tries, "it came before its time"
            clock.now += DELAYS_S[tries - 1]
            await until_async(lambda: len(seen.messages) == 3 + tries)  # noqa: B023
            last = seen.messages[-1]
            assert (last.topic, last.queue, last.offset, last.attempt) == ("t", 0, 1, tries + 1)
            assert (last.body, last.headers) == (b"t/0/1", {})
        await until_async(lambda: copies(tmp_path, DEAD))
    [letter] = copies(tmp_path, DEAD)
    assert (letter.message.offset, letter.message.attempt, len(letter.errors)) == (1, 17, 17)
    assert all(error.startswith(f"ValueError: no t/0/1, try {n}\n") for n, error in enumerate(letter.errors, start=1))
    assert len(seen.messages) == 19


async def test_retries_survive_the_member_that_stored_them(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [4])
    clock = Clock()
    first = Seen(lambda message: message.offset in {1, 3})
    async with consumer_of(tmp_path, first, clock):
        await until_async(lambda: len(first.messages) == 4)
    assert stored(tmp_path, "g")[T0] == 4
    second = Seen()
    async with consumer_of(tmp_path, second, clock):
        clock.now += 1.01
        await until_async(lambda: second.attempts == [(1, 2), (3, 2)])
    third = Seen()
    async with consumer_of(tmp_path, third, clock) as consumer:
        await until_async(consumer.queues)
        clock.now += 1e6
    assert third.messages == []


async def test_ordered_queue_waits_for_its_failing_message_and_other_queues_do_not(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
        fill(log, "t", 1, [3])
    seen, clock = Seen(lambda message: (message.queue, message.offset) == (0, 1) and message.attempt < 4), Clock()
    async with consumer_of(tmp_path, seen, clock, ordered=True) as consumer:
        await until_async(lambda: seen.offsets == {0: [0, 1], 1: [0, 1, 2]})
        lane = consumer._balance.lanes[T0]
        for delay_s, tries in ((1, 2), (5, 3), (10, 4)):
            await until_async(lambda: lane.blocked_until == clock.now + delay_s)  # noqa: B023
            clock.now += delay_s
            await until_async(lambda: seen.offsets[0][1 : 1 + tries] == [1] * tries)  # noqa: B023
        await until_async(lambda: seen.offsets[0] == [0, 1, 1, 1, 1, 2])
    assert [message.attempt for message in seen.messages if message.queue == 0] == [1, 1, 2, 3, 4, 1]


async def test_ordered_queue_continues_once_the_message_is_a_dead_letter(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
    seen, clock = Seen(lambda message: message.offset == 0), Clock()
    async with consumer_of(tmp_path, seen, clock, ordered=True, retry=Retry(retries_max=2, delays_s=[0])):
        await until_async(lambda: seen.attempts == [(0, 1), (0, 2), (0, 3), (1, 1)])
    [letter] = copies(tmp_path, DEAD)
    assert [error.splitlines()[0] for error in letter.errors] == [f"ValueError: no t/0/0, try {n}" for n in (1, 2, 3)]


async def test_queue_does_not_advance_while_a_failed_message_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    seen, clock = Seen(lambda message: message.offset == 1), Clock()
    consumer = consumer_of(tmp_path, seen, clock)
    full = [True]
    async with consumer:
        access = consumer._access
        assert access is not None
        append, refused = access.append, []

        def append_or_not(appends: list[Append]) -> list[int]:
            if full[0]:
                refused.append(1)
                raise StorageError("the log takes no more")
            return append(appends)

        monkeypatch.setattr(access, "append", append_or_not)
        await until_async(lambda: refused)
        await until_async(lambda: stored(tmp_path, "g")[T0] == 1)
    assert stored(tmp_path, "g")[T0] == 1, "what failed and is kept nowhere was gone past"
    again = Seen()
    async with consumer_of(tmp_path, again, clock):
        await until_async(lambda: again.attempts == [(1, 1), (2, 1)])


async def test_failed_message_stored_nowhere_is_redelivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of failed messages is also where the move is recorded: both fail while it is down."""
    monkeypatch.setattr(workers, "_KEEP_AGAIN_S", 0.01)
    monkeypatch.setattr(workers, "_FAILED_S_MAX", 60)
    with Log(tmp_path) as log:
        fill(log, "t", 0, [4])
    seen = Seen(lambda message: message.offset == 0 and len(seen.messages) == 1)
    consumer = consumer_of(tmp_path, seen, Clock())
    consumer.pause()
    refused: list[str] = []

    def refuse(name: str) -> Callable[[object], NoReturn]:
        def call(_: object) -> NoReturn:
            refused.append(name)
            raise BrokerUnavailable("the log's server is away")

        return call

    async with consumer:
        await until_async(consumer.queues)
        with monkeypatch.context() as away:
            away.setattr(consumer._access, "append", refuse("append"))
            away.setattr(consumer._balance._member, "seek_done", refuse("seek"))
            consumer.resume()
            await until_async(lambda: refused)
            with pytest.raises(BrokerUnavailable, match="the log's server is away"):
                await consumer._balance.seek(consumer._balance.lanes[T0], 3)
        assert refused[-1] == "seek"
        with Log(tmp_path) as log:
            fill(log, "t", 0, [1])
        await until_async(lambda: stored(tmp_path, "g")[T0] == 5)
    assert seen.attempts == [(offset, 1) for offset in (0, 1, 2, 3, 0, 1, 2, 3, 4)]


async def test_dead_letter_is_stored_once_while_retries_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_KEEP_AGAIN_S", 0.01)
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
        for offset, attempt in enumerate((3, 1)):
            message = ReceivedMessage("t", b"x", queue=0, offset=offset, attempt=attempt, id_bytes=bytes(16))
            retries, _ = appends_of("g", [Tried(message)], Backoff(delays_s=(0,), retries_max=3), 1)
            access.append(retries)
    refused: list[int] = []
    consumer = consumer_of(tmp_path, Seen(lambda _: True), Clock(), retry=Retry(retries_max=3, delays_s=[3600]))
    async with consumer:
        own = consumer._access
        assert own is not None
        append = own.append

        def append_or_not(appends: list[Append]) -> list[int]:
            if appends[0].topic == RETRY.topic and len(refused) < 5:
                refused.append(1)
                raise StorageError("the log of retries is held by another process")
            return append(appends)

        monkeypatch.setattr(own, "append", append_or_not)
        await until_async(lambda: len(refused) == 5 and stored(tmp_path, "g").get(RETRY) == 2)
    assert [each.message.offset for each in copies(tmp_path, DEAD)] == [0]


messages = st.builds(
    ReceivedMessage,
    topic=st.sampled_from(["t", "%x"]),
    body=st.binary(max_size=20),
    key=st.none() | st.text("abcж", min_size=1, max_size=5),
    tag=st.none() | st.just("created"),
    headers=st.dictionaries(st.text("ab", min_size=1, max_size=3), st.text("xy\n", max_size=3), max_size=2),
    queue=st.integers(0, 9999),
    offset=st.integers(0, 2**62),
    attempt=st.integers(1, 40),
    id_bytes=st.binary(min_size=16, max_size=16),
    n=st.integers(0, 999),
    born_at_us=st.integers(0, 2**57),
    stored_at_us=st.integers(0, 2**57),
    ordering_key=st.none() | st.text("o", min_size=1, max_size=2),
    generation=st.just(0),
    payload=st.none(),
)
NOW_US = 10**15


@given(st.lists(messages, min_size=1, max_size=6), st.integers(0, 30))
def test_retry_record_has_the_whole_message_and_is_in_the_queue_of_its_delay(
    failed: list[ReceivedMessage], retries_max: int
) -> None:
    from txmsg.metaq.format.batch import FrameBatch
    from txmsg.metaq.format.frame import pack, read_header

    backoff = Backoff(retries_max=retries_max)
    retries, dead = appends_of("g", [Tried(each).failed(HandlerFailure("why")) for each in failed], backoff, NOW_US)
    copies: dict[tuple[str, int], list[Tried]] = {}
    for topic, queue, payload, *_ in (*retries, *dead):
        frame = b"".join(pack(payload, topic.encode(), queue, 0, position=0, log_id=1, synced=0, generation=1))
        header = read_header(frame)
        copies[topic, queue] = [tried_of(message) for message in FrameBatch.verified(header, frame).messages()]
    for each in failed:
        delay_s = backoff.delay_s(each.attempt)
        if delay_s is None:
            expected = Tried(each, ("why",))
            place = ("%DLQ%g", 0)
        else:
            expected = Tried(each._replace(attempt=each.attempt + 1), ("why",), NOW_US + round(delay_s * 1e6))
            place = ("%RETRY%g", min(each.attempt, len(DELAYS_S)) - 1)
        assert expected in copies[place]
    assert sum(map(len, copies.values())) == len(failed)
    for (topic, _), tried in copies.items():
        if topic == "%RETRY%g":
            assert len({each.due_at_us for each in tried}) == 1, "a queue holds different delays"


def test_invalid_retry_record_is_refused() -> None:
    with pytest.raises(CorruptLog, match="offset 3 of topic %RETRY%g queue 0 is not a copy"):
        tried_of(ReceivedMessage("%RETRY%g", b"", queue=0, offset=3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"missing": "ignore"}, "missing='ignore' is not"),
        ({"start": "newest"}, "start='newest' is not a valid start position"),
        ({"start": Start.offset(3)}, "start=Start.* is not a valid start position"),
        ({"broadcast": "a%b"}, "broadcast='a%b' is neither"),
        ({"strategy": len}, "strategy .* takes"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        AsyncPullConsumer("DIR", "g", **options)  # type: ignore[arg-type]
