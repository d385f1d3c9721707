"""Parts that need neither a log nor Spark: options, positions, tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txmsg.errors import InvalidName, MisuseError, UnknownTopic
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.store.state import LogIdentity
from txmsg.spark.options import options_of
from txmsg.spark.position import StreamPosition, begins_between
from txmsg.spark.tasks import QueuePart, cut_into_tasks, limited
from txmsg.wire.start import Start

_LEAST = {"path": "/log", "topics": "t"}
_Q = LogQueue("t", 0)


# ---- options


def test_option_names_are_those_of_the_spark_kafka_source_and_case_insensitive() -> None:
    found = options_of(
        {**_LEAST, "STARTINGOFFSETS": '{"t": {"0": 5, "1": -2}}', "failondataloss": "False", "minPartitions": "3"},
        streaming=False,
    )
    assert found.start == {LogQueue("t", 0): Start.offset(5), LogQueue("t", 1): Start.earliest()}
    assert (found.fail_on_data_loss, found.min_partitions, found.end) == (False, 3, Start.latest())
    assert options_of(_LEAST, streaming=False).start == Start.earliest()
    assert options_of(_LEAST, streaming=True).start == Start.latest()
    assert options_of({**_LEAST, "startingTimestamp": "17"}, streaming=True).start == Start("time", 17_000)
    assert options_of({**_LEAST, "startingOffsets": "2026-05-01T10:00:00Z"}, streaming=True) == options_of(
        {**_LEAST, "startingTimestamp": "1777629600000"}, streaming=True
    )


@pytest.mark.parametrize(
    ("given_options", "streaming", "why"),
    [
        ({"topics": "t"}, False, "needs one of the options path"),
        ({**_LEAST, "server": "localhost:1"}, False, "needs one of the options path"),
        ({"path": "/log"}, False, "needs the option topics"),
        ({**_LEAST, "topics": " , "}, False, "needs the option topics"),
        ({**_LEAST, "startingOffset": "earliest"}, False, r"is it startingOffsets\?"),
        ({**_LEAST, "startingOffsets": "now"}, False, "'now' is not a valid start position"),
        ({**_LEAST, "startingOffsets": '{"t": {"0": -3}}'}, False, "is not a (valid )?start position"),
        ({**_LEAST, "startingOffsets": '{"t": 1}'}, False, "is not a (valid )?start position"),
        ({**_LEAST, "startingOffsets": "latest"}, False, "nothing to read"),
        ({**_LEAST, "endingOffsets": "earliest"}, False, "is earliest, before"),
        ({**_LEAST, "startingOffsets": "earliest", "startingTimestamp": "1"}, False, "leave one out"),
        ({**_LEAST, "startingTimestamp": "2026-11-11"}, False, "milliseconds since 1970"),
        ({**_LEAST, "startingTimestamp": "9" * 5_000}, False, "milliseconds since 1970"),
        ({**_LEAST, "startingTimestamp": "20", "endingTimestamp": "19"}, False, "ends at .*, before it starts at"),
        (
            {**_LEAST, "startingOffsets": '{"t": {"0": 5, "1": 5}}', "endingOffsets": '{"t": {"0": 5, "1": 4}}'},
            False,
            "endingOffsets 4 for topic t queue 1 is below startingOffsets 5",
        ),
        ({**_LEAST, "startingOffsets": "[" * 100_000}, False, "is not a (valid )?start position"),
        ({**_LEAST, "minPartitions": "9" * 5_000}, False, "whole number from 1"),
        ({**_LEAST, "maxOffsetsPerTrigger": "1"}, False, "one of spark.readStream"),
        ({**_LEAST, "prefetch": "true"}, False, "one of spark.readStream"),
        ({**_LEAST, "prefetch": "yes"}, True, "true or false"),
        ({**_LEAST, "endingOffsets": "latest"}, True, "one of spark.read"),
        ({**_LEAST, "maxOffsetsPerTrigger": "0"}, True, "whole number from 1"),
        ({**_LEAST, "failOnDataLoss": "no"}, True, "true or false"),
    ],
)
def test_unsupported_options_are_refused(given_options: Mapping[str, str], streaming: bool, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        options_of(given_options, streaming=streaming)


def test_invalid_addresses_and_names_are_refused() -> None:
    with pytest.raises(InvalidName, match="option server"):
        options_of({"server": "here", "topics": "t"}, streaming=True)
    with pytest.raises(InvalidName, match="topic 'a b'"):
        options_of({"path": "/log", "topics": "a b"}, streaming=True)


def test_dot_in_a_topic_pattern_matches_only_a_dot() -> None:
    known = ["trade.created", "trade.paid", "traders", "user"]
    found = options_of({"path": "/log", "topics": "trade.*, user"}, streaming=False)
    assert found.topics_of(known, all_named=True) == ["trade.created", "trade.paid", "user"]
    with pytest.raises(UnknownTopic, match=r"topic 'user' is not in the log /log \(is it users\?\)"):
        found.topics_of(["users"], all_named=True)
    assert found.topics_of(["users"], all_named=False) == []


# ---- positions


def test_position_round_trips_and_equal_positions_have_equal_texts() -> None:
    queues = [LogQueue("b", 10), LogQueue("b", 9), LogQueue("a", 0)]
    position = StreamPosition(LogIdentity(2**63 + 5, 3), {queue: 7 for queue in queues}, {_Q: 1}, is_initial=True)
    told = json.dumps(position.to_json())
    assert StreamPosition.of_json(json.loads(told)) == position
    same = StreamPosition(position.identity, {queue: 7 for queue in reversed(queues)}, {_Q: 1}, is_initial=True)
    assert json.dumps(same.to_json()) == told
    with pytest.raises(MisuseError, match="cannot read"):
        StreamPosition.of_json({"t": {"0": 5}})


def test_batch_begins_at_the_start_recorded_in_its_end_position() -> None:
    identity = LogIdentity(1)
    first = StreamPosition(identity, {_Q: 5}, {_Q: 2})
    assert begins_between(StreamPosition(identity, {_Q: 4}, is_initial=True), first) == {_Q: 2}
    assert begins_between(first, StreamPosition(identity, {_Q: 9, LogQueue("u", 0): 3}, {LogQueue("u", 0): 1})) == {
        _Q: 5,
        LogQueue("u", 0): 1,
    }
    assert begins_between(first, first) == {_Q: 5}


# ---- tasks


_PARTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100_000)), max_size=6).map(
    lambda found: [QueuePart(LogQueue("t", queue), begin, begin + size) for queue, (begin, size) in enumerate(found)]
)


@given(_PARTS, st.integers(1, 9), st.integers(1_000, 200_000))
@example([QueuePart(LogQueue("t", 0), 0, 4)], 3, 1_000)
def test_tasks_contain_each_message_once_in_pieces_of_the_requested_size(
    parts: list[QueuePart], min_tasks: int, size_max: int
) -> None:
    tasks = cut_into_tasks(parts, min_tasks=min_tasks, size_max=size_max)
    assert all(0 < sum(part.size for part in task) <= size_max for task in tasks)
    total = sum(part.size for part in parts)
    assert len(tasks) >= min(min_tasks, total)
    followed = {part.queue: part.begin for part in parts}
    for piece in (piece for task in tasks for piece in task):
        assert piece.begin == followed[piece.queue]
        followed[piece.queue] = piece.end
    assert followed == {part.queue: part.end for part in parts}


def test_small_queues_share_a_task() -> None:
    parts = [QueuePart(LogQueue("t", queue), 0, 100) for queue in range(1000)]
    assert len(cut_into_tasks(parts, min_tasks=1, size_max=1_000_000)) == 5


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=6), st.integers(1, 5_000))
def test_limited_batch_respects_its_limit_and_advances_every_nonempty_queue(waiting: list[int], count_max: int) -> None:
    begins = {LogQueue("t", queue): 10 for queue in range(len(waiting))}
    ends = {queue: 10 + count for queue, count in zip(begins, waiting, strict=True)}
    found = limited(begins, ends, count_max, lambda *_: None)
    taken = {queue: found[queue] - begins[queue] for queue in begins}
    assert sum(taken.values()) <= max(count_max, sum(count > 0 for count in waiting))
    assert all((count > 0) == (taken[queue] > 0) for queue, count in zip(begins, waiting, strict=True))
    assert all(0 <= taken[queue] <= ends[queue] - 10 for queue in begins)
    assert sum(taken.values()) >= min(count_max, sum(waiting)) - len(waiting)


_LENGTHS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2**20)), min_size=1, max_size=4)
"""So many messages, then so many missing offsets, repeatedly."""


@given(st.lists(_LENGTHS, min_size=1, max_size=3), st.integers(1, 500))
@example([[(0, 0)], [(1, 1)]], 2)
def test_missing_offsets_do_not_count_towards_the_limit(lengths: list[list[tuple[int, int]]], count_max: int) -> None:
    gaps: dict[LogQueue, list[tuple[int, int]]] = {}
    at: dict[LogQueue, int] = {}
    ends: dict[LogQueue, int] = {}
    for number, of_queue in enumerate(lengths):
        queue, offset = LogQueue("t", number), 0
        gaps[queue] = []
        for count, missing in of_queue:
            gaps[queue].append((offset + count, offset + count + missing))
            offset += count + missing
        at[queue], ends[queue] = 0, offset + 1

    def gap_at(queue: LogQueue, offset: int) -> tuple[int, int] | None:
        return next((gap for gap in gaps[queue] if gap[0] <= offset < gap[1]), None)

    def messages(queue: LogQueue, begin: int, end: int) -> int:
        return end - begin - sum(max(0, min(end, last) - max(begin, first)) for first, last in gaps[queue])

    total = sum(messages(queue, 0, ends[queue]) for queue in ends)
    batches = 0
    while at != ends:
        found = limited(at, ends, count_max, gap_at)
        taken = sum(messages(queue, at[queue], found[queue]) for queue in ends)
        assert taken <= max(count_max, len(ends))
        assert all(at[queue] <= found[queue] <= ends[queue] for queue in ends)
        at = found
        batches += 1
    assert batches <= total / count_max + 5 * len(ends), "offsets that are missing were counted"
