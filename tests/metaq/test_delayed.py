"""Delayed messages wait in the log and are delivered when due: in order of time, each once, despite kills."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from errno import EMFILE
from pathlib import Path
from typing import Any

import pytest

from tests.metaq.logs import batch, read_around
from tests.metaq.servers import MetaQProcess, log_at, served
from tests.waiting import until
from txmsg.errors import InvalidMessage, InvalidName, MisuseError, StorageError
from txmsg.message import Message, ReceivedMessage, now_us
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.fsck.repair import repair
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer, Place
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.ahead import AHEAD_MAX, leave_in_doubt
from txmsg.metaq.store.delayed import DELAYED, NOTES, DelayedBatch, DelayedEntry, MoveNote, delayed_from
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.mover import Mover
from txmsg.metaq.store.reader import LogReader, QueueReader
from txmsg.metaq.store.topics import Flush, TopicSettings

HOUR_US = 3_600_000_000
T = LogQueue("t", 0)


class Clock:
    """A clock in us since 1970; stands still unless it is set."""

    def __init__(self) -> None:
        self.us = 1_780_000_000_000_000

    def __call__(self) -> float:
        return self.us / 1e6


class Bench:
    """A log whose mover runs only when told, at a given time."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, config: LogConfig | None = None) -> None:
        monkeypatch.setattr("txmsg.metaq.store.moving.Moving.wake", lambda _: None)
        self.root = root
        self.clock = Clock()
        self.start_us = self.clock.us
        self.config = config
        self.open()

    def open(self) -> None:
        self.log = Log(self.root, self.config, clock=self.clock)
        self.mover = Mover(self.root, self.log._append_own, self.log.flush, self.log._queue_that_is_read)

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def send(self, body: str, after_us: int, topic: str = "t", queue: int = 0) -> None:
        payload = encode(FrameColumns([body.encode()], [self.clock.us]))
        self.log.append([Append(topic, queue, payload, due_at_us=self.clock.us + after_us)])

    def run(self, us: int = 0) -> int | None:
        """Let so much time pass, and move due messages."""
        self.clock.us += us
        next_us, _ = self.mover.run_once(self.clock.us)
        return None if next_us is None else next_us - self.start_us

    def there(self, topic: str = "t", queue: int = 0) -> list[str]:
        return [message.body.decode() for message in messages_of(self.root, topic, queue)]


def messages_of(root: Path, topic: str, queue: int) -> Iterator[ReceivedMessage]:
    reader = LogReader(root).queue(topic, queue)
    offset, end = reader.range()
    while offset < end:
        for each in reader.fetch(offset):
            yield from each.messages()
            offset = each.end_offset


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.log.close()


# ---- moves


def test_delayed_messages_are_delivered_in_order_of_due_time(bench: Bench) -> None:
    assert bench.run() is None, "nothing waits"
    for body, after_us in (("c", 30), ("a", 10), ("b", 20), ("d", 30)):
        bench.send(body, after_us)
    assert (bench.run(), bench.there()) == (10, [])
    assert (bench.run(20), bench.there()) == (30, ["a", "b"])
    assert (bench.run(9), bench.there()) == (30, ["a", "b"])
    assert (bench.run(1), bench.there()) == (None, ["a", "b", "c", "d"])
    assert (bench.run(HOUR_US), bench.there()) == (None, ["a", "b", "c", "d"])
    stored = [message.stored_at_us - bench.start_us for message in messages_of(bench.root, "t", 0)]
    assert stored == [20, 20, 30, 30], "stored when they were moved, so that times rise in a queue"


def test_message_already_due_when_appended_is_delivered_at_once(bench: Bench) -> None:
    bench.send("later", 100)
    bench.send("first", 50)
    bench.run(60)
    bench.send("late", -40)
    bench.send("very late", -55)
    assert (bench.run(), bench.there()) == (100, ["first", "very late", "late"])
    bench.reopen()
    assert (bench.run(40), bench.there()) == (None, ["first", "very late", "late", "later"])


def test_delayed_messages_are_not_lost_if_the_clock_is_set_back(bench: Bench) -> None:
    bench.send("moved", 100)
    bench.run(100)
    bench.clock.us -= 60
    bench.send("waits", 70)
    bench.send("due before the last move", 30)
    bench.send("late", -5)
    bench.run()
    bench.reopen()
    assert (bench.run(), bench.there()) == (110, ["moved", "late", "due before the last move"])
    assert (bench.run(70), bench.there()[3:]) == (None, ["waits"])


def test_reopened_log_continues_delivering_where_it_stopped(bench: Bench) -> None:
    for each in range(20):
        bench.send(f"{each}", 10 * (each + 1))
    for us in (0, 35, 60, 500):
        bench.reopen()
        bench.run(us)
    bench.reopen()
    assert (bench.run(), bench.there()) == (None, [f"{each}" for each in range(20)])


def test_messages_due_after_the_next_hour_are_only_on_disk(bench: Bench) -> None:
    for hours in range(5, 0, -1):
        bench.send(f"{hours}", hours * HOUR_US)
    bench.send("soon", 7)
    assert bench.run() == 7
    for hour in range(1, 6):
        while bench.there()[1:] != [f"{each}" for each in range(1, hour + 1)]:
            next_us = bench.run()
            assert next_us is not None
            assert len(bench.mover._heap) <= 2, "the others are not in memory"
            bench.run(next_us - (bench.clock.us - bench.start_us))
        assert bench.clock.us == bench.start_us + hour * HOUR_US
    assert bench.run() is None


def test_one_append_moves_due_messages_of_several_topics(bench: Bench) -> None:
    for each in range(3):
        bench.send(f"{each}", 5, f"t{each}", each)
    _, grown = bench.mover.run_once(bench.clock.us + 5)
    assert grown == {("t0", 0), ("t1", 1), ("t2", 2)}
    assert [bench.there(f"t{each}", each) for each in range(3)] == [["0"], ["1"], ["2"]]
    assert LogReader(bench.root).queue(DELAYED, 1).range() == (0, 1), "one note"


def test_due_messages_are_read_in_few_reads_and_progress_is_noted_every_few_hundred(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a mover far behind, and repeatedly killed, makes progress."""
    after_us = random.Random(5).sample(range(1, 5000), 1000)
    payload = encode(FrameColumns([b"x"], [bench.clock.us]))
    bench.log.append([Append("t", 0, payload, due_at_us=bench.clock.us + each) for each in after_us])
    bench.run()
    fetched: list[int] = []
    fetch = QueueReader.fetch

    def counted(reader: QueueReader, offset: int, **bounds: Any) -> list[FrameBatch]:
        fetched.append(offset)
        return fetch(reader, offset, **bounds)

    with monkeypatch.context() as patch:
        patch.setattr(QueueReader, "fetch", counted)
        bench.run(5000)
    assert len(bench.there()) == 1000
    notes = [MoveNote.unpack(message.body) for message in messages_of(bench.root, DELAYED, NOTES)]
    assert [len(note.moves) for note in notes] == [250] * 4
    moved = [after_us[move.entry] for note in notes for move in note.moves]
    assert moved == sorted(after_us)
    assert len(fetched) < 50


@pytest.mark.parametrize("compression", list(Compression))
def test_delayed_batch_is_moved_unchanged(bench: Bench, compression: Compression) -> None:
    columns = FrameColumns([b"x" * 1000, b"y"], [1], bytes(range(32)), born_at_us=[3, 4], key=["k", ""], tag=["", "t"])
    bench.log.append([Append("t", 3, encode(columns, compression), due_at_us=bench.clock.us + 1)])
    bench.run(1)
    one, two = messages_of(bench.root, "t", 3)
    assert (one.body, one.key, one.tag, one.id_bytes, one.born_at_us) == (b"x" * 1000, "k", None, bytes(range(16)), 3)
    assert (two.body, two.key, two.tag, two.stored_at_us) == (b"y", None, "t", bench.clock.us)


def test_entry_round_trips() -> None:
    payload = encode(FrameColumns([b"body"], [7], key=["k"]))
    assert DelayedEntry.unpack(DelayedEntry(5, DelayedBatch("t", 9, payload)).pack(), 7) == DelayedEntry(
        5, DelayedBatch("t", 9, payload)
    )


# ---- crashes: the file ends anywhere in a move


def test_interrupted_move_is_completed_without_duplicates(bench: Bench) -> None:
    """After each number of frames of a move of three, with another message at a reserved position."""
    for each in range(4):
        bench.send(f"{each}", each, "t", each % 2)
    bench.run(2)
    [file] = (bench.root / "commitlog").iterdir()
    whole = file.read_bytes()
    ends = [frame.header.end for frame in frames_of(bench.root)]
    bench.log.close()
    for kept, others in [(kept, others) for kept in (4, 5, 6, 7, 8) for others in (False, True)]:
        cut(bench, whole[: ends[kept - 1] + (8 if kept < 8 else 0)])
        bench.open()
        if others:
            bench.log.append([batch("t", 0, 0, 1)._replace(base_offset=None)])
        for _ in range(2):
            bench.run(0)
            bench.reopen()
        bench.run(10)
        assert sorted(body for queue in (0, 1) for body in bench.there("t", queue) if "/" not in body) == list("0123")
        for queue in (0, 1):
            mine = [body for body in bench.there("t", queue) if "/" not in body]
            assert mine == sorted(mine)
        bench.log.close()
        bench.clock.us -= 10
    bench.open()


def test_moved_messages_lost_in_a_truncation_are_moved_again_after_the_skipped_offsets(bench: Bench) -> None:
    """As after a power cut with a timed topic, or in a promoted copy that got only the note."""
    bench.send("a", 1)
    bench.run(1)
    [file] = (bench.root / "commitlog").iterdir()
    whole, ends = file.read_bytes(), [frame.header.end for frame in frames_of(bench.root)]
    bench.log.close()
    cut(bench, whole[: ends[-2]])
    leave_in_doubt(bench.root, [("t", 0)])
    bench.open()
    for _ in range(2):
        bench.run()
        assert list(read_around(LogReader(bench.root).queue("t", 0)).items()) == [(AHEAD_MAX, b"a")]
        bench.reopen()


@pytest.mark.parametrize("lost", [1, 2])
def test_messages_are_moved_again_if_the_note_of_their_move_is_lost(bench: Bench, lost: int) -> None:
    """A repair has removed the last notes, or all of them."""
    for each in range(3):
        bench.send(f"{each}", each + 1)
    for _ in range(2):
        bench.run(1)
    assert bench.there() == ["0", "1"]
    notes = LogReader(bench.root).queue(DELAYED, NOTES).fetch(0)
    bench.log.close()
    [file] = (bench.root / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    for note in notes[-lost:]:
        data[note.header.position + 20] ^= 1
    file.write_bytes(data)
    repair(bench.root)
    bench.open()
    again = ["0", "1"][-lost:]
    assert [f"{each.number}" for each in delayed_from(LogReader(bench.root), 0, 9, size_bytes=999)[0].first] == [
        *again,
        "2",
    ]
    assert (bench.run(), bench.there()) == (3, ["0", "1", *again])
    bench.reopen()
    assert (bench.run(1), bench.there()) == (None, ["0", "1", *again, "2"])


def frames_of(root: Path) -> list:  # type: ignore[type-arg]
    reader = LogReader(root)
    found = [
        each
        for topic, queues in reader.topics().items()
        for queue in queues
        for each in reader.queue(topic, queue).fetch(0)
    ]
    return sorted(found, key=lambda each: each.header.position)


def cut(bench: Bench, data: bytes) -> None:
    """Truncate the log as a crash does."""
    [file] = (bench.root / "commitlog").iterdir()
    file.write_bytes(data)
    (bench.root / "checkpoint").unlink(missing_ok=True)
    for cells in (bench.root / "queues").rglob("*.cells"):
        cells.unlink()


def test_full_disk_delays_due_messages_and_loses_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send("a", 5)
    bench.send("b", 6)

    def full(*_: object) -> list[int]:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.mover, "_append", full)
        for _ in range(2):
            with pytest.raises(StorageError):
                bench.run(5)
    assert (bench.run(), bench.there()) == (None, ["a", "b"])


def test_messages_moved_before_a_failed_sync_are_not_moved_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without free file descriptors: the log is intact, and a later sync succeeds."""
    for after_us in (5, 6, 7):
        bench.send(f"{after_us}", after_us)

    def no_descriptor(_: int) -> int:
        raise OSError(EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("txmsg.metaq.store.commit_log.os.dup", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            bench.run(6)
    bench.send("late", -5)
    assert (bench.run(), bench.there()) == (7, ["5", "6", "late"])
    bench.reopen()
    assert (bench.run(1), bench.there()) == (None, ["5", "6", "late", "7"])


# ---- retention


def test_file_with_waiting_delayed_messages_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(file_size_bytes_max=2000, retention_size_bytes=1)
    bench = Bench(tmp_path, monkeypatch, config)
    bench.log._mover = bench.mover

    def fill_and_delete() -> list[int]:
        for _ in range(10):
            bench.log.append([Append("other", 0, encode(FrameColumns([bytes(1000)], [1])))])
        return bench.log.delete_old()

    assert fill_and_delete()
    bench.send("waits", 2 * HOUR_US)
    bench.run()
    fill_and_delete()
    assert fill_and_delete() == [], "before the message there is nothing left, and it waits"
    bench.run(HOUR_US)
    bench.run(HOUR_US)
    assert bench.there() == ["waits"]
    assert fill_and_delete()
    bench.log.close()


def test_old_files_are_deleted_although_newer_messages_always_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, LogConfig(file_size_bytes_max=4096, retention_size_bytes=8192))
    bench.log._mover = bench.mover
    for number in range(300):
        bench.send(f"{number:0100}", 10_000_000)
        bench.run(5_000_000)
    bench.log.delete_old()
    assert bench.log.size().size_bytes < 20_000
    bench.reopen()
    bench.run(10_000_000)
    assert bench.there()[-1] == f"{299:0100}"
    assert len(set(bench.there())) == len(bench.there())
    bench.log.close()


def test_due_message_of_a_removed_queue_goes_to_a_readable_one(bench: Bench) -> None:
    bench.send("x", 5, queue=3)
    bench.log.set_topic("t", TopicSettings(write_queues=2, read_queues=2))
    bench.run(5)
    assert (bench.there(queue=1), LogReader(bench.root).topics()["t"]) == (["x"], [1])


@pytest.mark.parametrize(
    ("wrong", "error", "why"),
    [
        (Append("t", 0, encode(FrameColumns([b""], [1])), due_at_us=2**60), InvalidMessage, "at most .its setting"),
        (Append("t", 0, encode(FrameColumns([b"", b""], [1, 2])), due_at_us=5), InvalidMessage, "leave that out"),
        (Append("%RETRY%g", 0, encode(FrameColumns([b""], [1])), due_at_us=5), InvalidMessage, "the log's own"),
        (Append("t", 0, encode(FrameColumns([b""], [1])), 0, due_at_us=5), MisuseError, "no offset before it is due"),
        (Append("t", 1024, encode(FrameColumns([b""], [1])), due_at_us=5), MisuseError, "0 to 1023"),
        (Append("t/", 0, encode(FrameColumns([b""], [1])), due_at_us=5), InvalidName, "t/"),
    ],
)
def test_append_that_cannot_be_delayed_is_refused(
    bench: Bench, wrong: Append, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        bench.log.append([wrong])
    assert LogReader(bench.root).topics() == {}


# ---- as applications use it, in a directory and at a server


@pytest.fixture(params=["directory", "server"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAccess]:
    if request.param == "directory":
        with open_log(tmp_path, append=True) as access:
            yield access
    else:
        with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as access:
            yield access


def test_a_producer_sends_delayed_messages(log: LogAccess) -> None:
    producer = LogProducer(log, queues=1)
    soon, past = timedelta(milliseconds=300), datetime(2020, 1, 1, tzinfo=UTC)
    log.set_topic("t", TopicSettings(flush=Flush.TIMED))
    sent_us = now_us()
    places = producer.send_many(
        [Message("t", b"delayed", deliver_after=soon), Message("t", b"now"), Message("t", b"past", deliver_at=past)]
    )
    assert places == [Place("t", 0, -1, 0), Place("t", 0, 0), Place("t", 0, 1)]
    [fetched] = log.fetch({T: 2}, wait_s=60)
    [message] = fetched.batches[0].messages()
    assert (message.body, message.offset) == (b"delayed", 2)
    assert message.born_at_us <= sent_us + 10_000_000
    assert message.stored_at_us >= sent_us + 300_000
    assert log.topics() == {"t": [0]}, "the topic in which it waited is the log's own"
    with pytest.raises(InvalidMessage, match=r"due in 4\.0 days: this log holds messages for 3 days at most"):
        producer.send(Message("t", b"", deliver_after=timedelta(days=4)))


def test_append_to_the_internal_topic_of_delayed_messages_is_refused(tmp_path: Path) -> None:
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as log:
        with pytest.raises(InvalidName, match="the log's own"):
            log.append([Append(DELAYED, 0, encode(FrameColumns([b"x"], [1])))])


def test_producers_and_due_messages_append_to_the_same_queue(tmp_path: Path) -> None:
    """The server reserves offsets for its appends while the log moves due messages to the same queue."""
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as log:

        def send(bodies: Sequence[int]) -> None:
            for body in bodies:
                delay = timedelta(milliseconds=body % 7) if body % 2 else None
                LogProducer(log, queues=1).send(Message("t", b"%d" % body, deliver_after=delay))

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(send, range(each, 400, 4)) for each in range(4)]:
                done.result()
        until(lambda: log.ranges([T])[T].end == 400)
        assert sorted(int(message.body) for message in messages_of(tmp_path, "t", 0)) == list(range(400))


# ---- killed while messages come due


@pytest.mark.long
def test_each_delayed_message_is_delivered_once_and_not_early_despite_kills(tmp_path: Path) -> None:
    """A server is killed repeatedly while messages are sent and become due."""
    rng = random.Random(5)
    due: dict[str, int] = {}
    with (
        MetaQProcess(tmp_path / "log", log=tmp_path / "server.log") as server,
        open_log(server.address, timeout_s=60) as access,
        ThreadPoolExecutor(1) as threads,
    ):
        producer = LogProducer(access, queues=2)
        killing = threads.submit(kill_often, server, 6, rng)
        while not killing.done():
            messages = []
            for _ in range(10):
                at = datetime.now(UTC) + timedelta(milliseconds=rng.randint(0, 2000))
                due[f"{len(due)}"] = int(at.timestamp() * 1e6)
                messages.append(Message("t", b"%d" % (len(due) - 1), deliver_at=at))
            producer.send_many(messages)
        killing.result()
        found: list[ReceivedMessage] = []

        def all_there() -> bool:
            found[:] = [message for queue in (0, 1) for message in messages_of(tmp_path / "log", "t", queue)]
            return len(found) >= len(due)

        until(all_there)
    assert sorted(message.body.decode() for message in found) == sorted(due), "each once"
    assert not any(message.stored_at_us < due[message.body.decode()] for message in found)


def kill_often(server: MetaQProcess, times: int, rng: random.Random) -> None:
    for _ in range(times):
        time.sleep(rng.random())  # the moment is to be any
        server.kill()
        server.start()
