"""Batches of many callers in one append: invalid ones, other writers, and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, readable
from txmsg.errors import MisuseError, Overloaded, StorageError
from txmsg.message import now_us
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import NOTES, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.appender import AppendExecutor
from txmsg.metaq.server.placement import AppendCall, Outcome, Placer
from txmsg.metaq.server.producers import AppendNote, CallId, Placed
from txmsg.metaq.store.log import Append


def call(sequence: int, *appends: Append, is_repeat: bool = False) -> AppendCall:
    return AppendCall(CallId(bytes(16), sequence), 1, appends, is_repeat)


def at_end(topic: str, queue: int, start: int, count: int) -> Append:
    return batch(topic, queue, start, count)._replace(base_offset=None)


def wrong(outcome: Outcome) -> bool:
    return isinstance(outcome, MisuseError)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    with LocalLog(tmp_path, append=True) as log:
        yield log


def test_calls_run_in_order_and_an_invalid_one_leaves_no_gap(log: LocalLog, tmp_path: Path) -> None:
    outcomes = Placer(log).place(
        [
            call(1, at_end("t", 0, 0, 2), at_end("t", 1, 0, 1)),
            call(2, at_end("t", 0, 9, 5), batch("t", 1, 7, 1)),
            call(3, batch("t", 0, 2, 1)),
            call(4, Append("t", 2, hole(4, 1)), at_end("t", 2, 4, 1)),
        ]
    )
    assert [outcomes[0], outcomes[2], outcomes[3]] == [(0, 0), (2,), (0, 4)]
    assert wrong(outcomes[1])
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 3)


def test_placement_accounts_for_appends_by_others(log: LocalLog, tmp_path: Path) -> None:
    placer = Placer(log)
    assert placer.place([call(1, at_end("t", 0, 0, 1))]) == [(0,)]
    log.append([batch("t", 0, 1, 2)])
    outcomes = placer.place(
        [call(2, at_end("t", 0, 3, 1)), call(3, batch("t", 0, 99, 1)), call(4, batch("t", 0, 4, 1))]
    )
    assert (outcomes[0], wrong(outcomes[1]), outcomes[2]) == ((3,), True, (4,))
    log.append([batch("t", 0, 5, 1)])
    assert placer.place([call(5, batch("t", 0, 6, 1))]) == [(6,)]
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 7)


def test_repeat_completes_an_append_cut_off_by_a_crash(log: LocalLog, tmp_path: Path) -> None:
    """The note and the first of two batches are on disk, the second is not: as after a torn write."""
    whole = call(5, at_end("t", 0, 0, 2), at_end("t", 1, 0, 3))
    placed = [
        Placed(append.topic, append.queue, 0, append.payload.count, append.payload.crc) for append in whole.appends
    ]
    before = AppendNote(CallId(bytes(16), 4), 1, (Placed("t", 2, 0, 1, batch("t", 2, 0, 1).payload.crc),))
    for note, batches in (
        (before, [batch("t", 2, 0, 1)]),
        (AppendNote(whole.id, 1, tuple(placed)), [batch("t", 0, 0, 2)]),
    ):
        log.append([Append(NOTES, 0, encode(FrameColumns([b"no note", note.pack()], [now_us()]))), *batches])
    placer = Placer(log)
    found = {note.call.sequence: bases for note, bases in placer.recovered()}
    assert found == {4: (0,), 5: (0,)}
    log.append([batch("t", 1, 0, 1)])  # another's, in the place that was foreseen for the second
    assert placer.place([replace(whole, done=found[5])]) == [(0, 1)]
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 2)
    assert readable(tmp_path, "t", 1) == bodies("t", 1, 0, 1) + bodies("t", 1, 0, 3)
    assert {note.call.sequence: bases for note, bases in Placer(log).recovered()}[5] == (0, 1)


def test_repeat_with_explicit_offsets_compares_the_stored_bytes(log: LocalLog, tmp_path: Path) -> None:
    placer = Placer(log)
    appends = (batch("t", 0, 0, 2), Append("t", 1, hole(5, 1), 0), batch("t", 1, 5, 1))
    assert placer.place([call(1, *appends)]) == [(0, 0, 5)]
    assert wrong(placer.place([call(1, *appends)])[0]), "nobody says that it is a repeat"
    assert placer.place([call(1, *appends, is_repeat=True)]) == [(0, 0, 5)]
    assert placer.place([call(2, *appends, batch("t", 0, 2, 1), is_repeat=True)]) == [(0, 0, 5, 2)]
    other = batch("other", 0, 0, 2).payload
    assert wrong(placer.place([call(3, Append("t", 0, other, 0), is_repeat=True)])[0]), "other bytes are there"
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 3)
    assert log.ranges([LogQueue("t", 1)])[LogQueue("t", 1)].end == 6


class BrokenPlacer(Placer):
    """Raises an unexpected error once."""

    broken = True

    def place(self, calls: Sequence[AppendCall]) -> list[Outcome]:
        if self.broken:
            self.broken = False
            raise RuntimeError("a defect")
        return super().place(calls)


async def test_unexpected_failure_is_reported_and_the_next_append_succeeds(log: LocalLog, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        appender = AppendExecutor(
            lambda: BrokenPlacer(log),
            thread,
            size_bytes_max=100,
            on_appended=lambda queues: None,
            clock=lambda: 0.0,
        )
        with pytest.raises(StorageError, match="appending failed: RuntimeError"):
            await appender.append(call(1, at_end("t", 0, 0, 1)))
        assert "RuntimeError" in appender.failure
        large = call(2, at_end("t", 0, 0, 100))
        assert large.size_bytes > 100
        twice = [asyncio.create_task(appender.append(large)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=f"appends of {large.size_bytes} bytes are pending"):
            await appender.append(call(3, at_end("t", 0, 0, 1)))
        await appender.finished()
        assert appender.size_bytes == 0, "it waits for what is under way"
        assert [await task for task in twice] == [(0,), (0,)], "one call, told twice"
        assert await appender.append(large) == (0,)
        assert (appender.failure, appender.size_bytes) == ("", 0)
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 100)


class SmallPlacer(Placer):
    """Accepts only small calls."""

    def place(self, calls: Sequence[AppendCall]) -> list[Outcome]:
        return [
            StorageError("no space left on device")
            if each.size_bytes > 100
            else super(SmallPlacer, self).place([each])[0]
            for each in calls
        ]


async def test_refused_large_appends_are_logged_once_a_minute(log: LocalLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now, sequence = 0.0, 0
    with ThreadPoolExecutor(1) as thread:
        appender = AppendExecutor(
            lambda: SmallPlacer(log), thread, size_bytes_max=10_000, on_appended=lambda queues: None, clock=lambda: now
        )

        async def alternate() -> list[str]:
            nonlocal sequence
            caplog.clear()
            for _ in range(5):
                with pytest.raises(StorageError):
                    await appender.append(call(sequence + 1, at_end("t", 0, 0, 100)))
                assert appender.failure
                await appender.append(call(sequence + 2, at_end("t", 0, 0, 1)))
                assert not appender.failure
                sequence += 2
            return [text for text in caplog.messages if "accepts" in text]

        assert len(await alternate()) == 2
        now = 30.0
        assert not await alternate()
        now = 60.0
        refused, works_again = await alternate()
        assert "accepts no appends" in refused
        assert "accepts appends again" in works_again


async def test_append_to_a_group_log_does_not_clear_the_failure_of_the_log(log: LocalLog) -> None:
    log.join("g", ["t"]).leave({})
    with ThreadPoolExecutor(1) as thread:
        appender = AppendExecutor(
            lambda: Placer(log), thread, size_bytes_max=100, on_appended=lambda queues: None, clock=lambda: 0.0
        )
        appender.failure = "the disk is full"
        assert await appender.append(call(1, at_end("%RETRY%g", 0, 0, 1))) == (0,)
        assert appender.failure == "the disk is full"
        assert await appender.append(call(2, at_end("t", 0, 0, 1))) == (0,)
        assert not appender.failure
