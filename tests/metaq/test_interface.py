"""A log in a directory, used through the same interface as a remote one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill
from txmsg.errors import CorruptLog, MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import Fetched, LogAccess, LogQueue, QueueRange
from txmsg.metaq.location import open_log
from txmsg.metaq.store.growth import Growth
from txmsg.metaq.store.log import Append, Log

A, B, C = LogQueue("a", 0), LogQueue("b", 0), LogQueue("c", 0)
WAIT_S = 30.0


def held(fetched: Fetched) -> list[bytes]:
    return [body for each in fetched.batches for body in each.to_arrow()["body"].to_pylist()]


def test_error_in_one_queue_does_not_affect_others_of_a_fetch(tmp_path: Path) -> None:
    with Log(tmp_path) as log, open_log(tmp_path) as access:
        fill(log, "a", 0, [2, 3])
        fill(log, "b", 0, [1])
        log.append([Append("c", 0, hole(4, 1))])
        wrong, whole, missing = access.fetch({B: 9, A: 1, C: 0})
        assert isinstance(wrong.error, OffsetOutOfRange)
        assert (wrong.queue, wrong.batches) == (B, ())
        assert (whole.queue, held(whole), whole.error) == (A, bodies("a", 0, 1, 4), None)
        assert isinstance(missing.error, OffsetsMissing)
        assert missing.error.end == 4
        assert access.fetch({A: 5, B: 1, C: 4}) == []
        assert access.ranges([A, B, C, LogQueue("new", 3)]) == {
            A: QueueRange(0, 5),
            B: QueueRange(0, 1),
            C: QueueRange(0, 4),
            LogQueue("new", 3): QueueRange(0, 0),
        }


def test_fetch_respects_its_size_limit_but_returns_at_least_one_batch(tmp_path: Path) -> None:
    with Log(tmp_path) as log, open_log(tmp_path) as access:
        for topic in ("a", "b"):
            fill(log, topic, 0, [10, 10])
        [one] = access.fetch({A: 0, B: 0}, size_bytes_max=1)
        assert held(one) == bodies("a", 0, 0, 10)
        [other] = access.fetch({B: 10, A: 10}, size_bytes_max=1)
        assert held(other) == bodies("b", 0, 10, 10)


def test_fetch_waits_for_appends_of_another_process(tmp_path: Path) -> None:
    with Log(tmp_path) as log, open_log(tmp_path) as access:
        fill(log, "a", 0, [1])
        found: list[Fetched] = []
        waiter = threading.Thread(target=lambda: found.extend(access.fetch({A: 1, B: 0}, wait_s=WAIT_S)))
        waiter.start()
        log.append([batch("b", 0, 0, 2)])
        waiter.join(WAIT_S)
        [each] = found
        assert (each.queue, held(each)) == (B, bodies("b", 0, 0, 2))


def test_close_ends_a_waiting_fetch(tmp_path: Path) -> None:
    Log(tmp_path).close()
    access = open_log(tmp_path)
    found: list[list[Fetched]] = []
    waiter = threading.Thread(target=lambda: found.append(access.fetch({A: 0}, wait_s=1000)))
    waiter.start()
    access.close()
    waiter.join(WAIT_S)
    assert found == [[]]


def test_waiting_fetch_does_not_read_queues_while_the_log_does_not_grow(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "a", 0, [1])
        looks: list[int] = []
        Growth(tmp_path, threading.Event()).wait(lambda: looks.append(1), 0.5)
        assert len(looks) <= 2, "a queue was looked at though the file had not grown"


def test_append_to_a_log_opened_for_reading_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as writer, open_log(tmp_path) as access:
        assert writer.append([batch("a", 0, 0, 2)]) == [0]
        assert access.topics() == {"a": [0]}
        with pytest.raises(MisuseError, match="append=True"):
            access.append([batch("a", 0, 2, 1)])
        assert access.identity() == writer.identity()


def test_messages_are_found_by_their_key_and_queues_by_time(keyed: LogAccess) -> None:
    assert [(each.queue, each.offset) for each in keyed.find("k", "wanted")] == [(0, 1), (0, 6), (1, 0)]
    assert [each.offset for each in keyed.find("k", "wanted", count_max=2)] == [1, 6]
    assert keyed.find("k", "nobody's") == []
    assert keyed.offsets_at([LogQueue("k", 0), LogQueue("k", 1)], 20) == {LogQueue("k", 0): 5, LogQueue("k", 1): 0}


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[LogAccess]:
    """Two queues with keys, and a hole in the first one."""
    with open_log(tmp_path, append=True) as access:
        access.append(
            [
                Append("k", 0, encode(FrameColumns([b""] * 3, [10], key=["x", "wanted", ""]))),
                Append("k", 0, hole(5, 10)),
                Append("k", 0, encode(FrameColumns([b""] * 2, [20], key=["", "wanted"]))),
                Append("k", 1, encode(FrameColumns([b""], [30], key=["wanted"]))),
            ]
        )
        yield access


def test_waiting_fetch_fails_if_the_log_is_removed(tmp_path: Path) -> None:
    Log(tmp_path / "log").close()
    with open_log(tmp_path / "log") as access:
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        [found] = access.fetch({LogQueue("t", 0): 0}, wait_s=10)
        assert "is not a log" in str(found.error)


def test_directory_without_a_log_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CorruptLog, match="is not a log"):
        open_log(tmp_path)


@pytest.mark.parametrize("looks_meanwhile", [False, True])
def test_open_readers_follow_a_recreated_log(tmp_path: Path, *, looks_meanwhile: bool) -> None:
    """Also its groups' retry logs: as when a group is deleted and its next member fails a message."""
    retries = LogQueue("%RETRY%g", 0)
    with open_log(tmp_path, append=True) as writer:
        writer.append([batch("a", 0, 0, 3)])
        writer.join("g", ["a"]).leave({})
        writer.append([batch("%RETRY%g", 0, 0, 1)])
    with open_log(tmp_path) as reader:
        assert [len(each.batches[0]) for each in reader.fetch({A: 0, retries: 0})] == [3, 1]
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.unlink()
        if looks_meanwhile:
            with pytest.raises(CorruptLog, match="is not a log"):
                reader.topics()
            assert reader.fetch({retries: 0}) == []
        with open_log(tmp_path, append=True) as writer:
            writer.append([batch("a", 0, 0, 2)])
            writer.append([batch("%RETRY%g", 0, 0, 4)])
        found = reader.fetch({A: 0, retries: 0})
        assert [each.error for each in found] == [None, None]
        assert [len(each.batches[0]) for each in found] == [2, 4]
        assert reader.ranges([A]) == {A: QueueRange(0, 2)}
