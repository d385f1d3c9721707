"""Delayed messages of a log are listed, counted and recalled: a recalled message is never delivered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.metaq.servers import log_at, served
from tests.metaq.test_delayed import HOUR_US, Bench
from tests.metrics.scraping import scrape
from tests.ports import own_port
from tests.waiting import until
from txmsg.errors import MisuseError
from txmsg.message import Message
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.server.log_api import LogApi
from txmsg.metaq.server.server import _READERS
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.delayed import DelayedReader, delayed_from
from txmsg.metaq.store.reader import LogReader
from txmsg.ops.cli.main import main
from txmsg.wire.v1 import metaq_pb2 as pb


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.log.close()


def numbers(bench: Bench) -> list[int]:
    """List waiting messages in order of time, as any process does, a few bytes at a time."""
    found, following = delayed_from(LogReader(bench.root), 0, 100, size_bytes=0)
    while following:
        more, following = delayed_from(LogReader(bench.root), following, 100, size_bytes=0)
        found = found.plus(more, 100)
    assert sum(found.messages.values()) == sum(each.messages for each in found.first)
    return [each.number for each in found.first]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_recalled_message_is_never_delivered(bench: Bench, *, is_read: bool, is_reopened: bool) -> None:
    """Due soon or after the next hour, before it was read or after, and also in a reopened log."""
    for body, after_us in (("a", 10), ("b", 20), ("later", 2 * HOUR_US), ("much later", 3 * HOUR_US)):
        bench.send(body, after_us)
    if is_read:
        bench.run()
    assert numbers(bench) == [0, 1, 2, 3]
    for number in (0, 2):
        bench.mover.recall("t", number, bench.clock.us)
        bench.mover.recall("t", number, bench.clock.us)  # after a lost answer
    assert numbers(bench) == [1, 3]
    assert bench.mover.waiting_messages == 2
    if is_reopened:
        bench.reopen()
    bench.run(20)
    assert bench.there() == ["b"]
    assert numbers(bench) == [3]
    for _ in range(4):
        bench.run(HOUR_US)
    assert bench.there() == ["b", "much later"]
    assert (numbers(bench), bench.mover.waiting_messages) == ([], 0)


def test_recall_of_a_message_that_does_not_wait_is_refused(bench: Bench) -> None:
    bench.send("gone", 10)
    bench.send("waits", 100)
    bench.run(10)
    for topic, number in (("t", 0), ("t", 2), ("t", -1), ("another", 1)):
        with pytest.raises(MisuseError, match=f"nothing waits as number {number} in topic '{topic}': it was delivered"):
            bench.mover.recall(topic, number, bench.clock.us)
    bench.run(90)
    assert bench.there() == ["gone", "waits"]


def test_overdue_message_is_listed_until_it_is_moved(bench: Bench) -> None:
    bench.send("first", 50)
    bench.run(60)
    bench.send("late", -40)
    assert numbers(bench) == [1], "before the place where moving is, but not moved"
    bench.run()
    assert (numbers(bench), bench.there()) == ([], ["first", "late"])


def test_recalled_message_does_not_retain_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.send("x", 1000)
    bench.run()
    assert bench.mover.kept_from() == 0
    bench.mover.recall("t", 0, bench.clock.us)
    bench.run()
    assert bench.mover.kept_from() is None
    bench.log.close()


def test_recall_is_dropped_from_memory_once_its_message_is_passed(bench: Bench) -> None:
    for number in range(5):
        bench.send("x", 1000 + number)
        bench.mover.recall("t", number, bench.clock.us)
    assert len(bench.mover._recalled) == 5
    bench.send("y", 1)
    bench.run(1)
    assert (bench.there(), bench.mover._recalled) == (["y"], set())
    bench.mover.recall("t", 3, bench.clock.us)  # after a lost answer


def test_only_recalls_of_possibly_waiting_messages_are_read(bench: Bench) -> None:
    for number in range(4):
        bench.send("x", 1000)
        bench.mover.recall("t", number, bench.clock.us)
    reader = DelayedReader(LogReader(bench.root))
    assert [set(reader.recalled(first)) for first in range(5)] == [{0, 1, 2, 3}, {1, 2, 3}, {2, 3}, {3}, set()]


def test_recall_waiting_for_the_disk_does_not_block_moves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send("x", 1000)
    bench.run()
    waited: list[bool] = []

    def sync() -> None:
        waited.append(bench.mover._lock.locked())
        bench.log.flush()

    monkeypatch.setattr(bench.mover, "_sync", sync)
    bench.mover.recall("t", 0, bench.clock.us)
    assert waited == [False]


def test_delay_of_due_messages_is_measured(bench: Bench) -> None:
    bench.log._mover = bench.mover
    bench.send("x", 1_000_000)
    bench.run()
    assert bench.log.counts().delayed_late_s == 0
    bench.clock.us += 3_500_000
    assert bench.log.counts().delayed_late_s == 2.5
    bench.run()
    assert bench.log.counts().delayed_late_s == 0


# ---- by commands and applications, in a directory and at a server


@pytest.fixture(params=["directory", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        with open_log(tmp_path, append=True):
            pass
        yield str(tmp_path)
    else:
        with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address:
            yield address


def said(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["metaq", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_command_lists_and_recalls_delayed_messages(place: str) -> None:
    log: LogAccess
    with open_log(place, append=True) as log:
        producer = LogProducer(log, queues=1)
        one, two = producer.send_many([Message("reminder", b"x", deliver_after=timedelta(hours=1))] * 2)
        assert one.number == two.number, "they were sent together"
        other = producer.send(Message("bill", b"y", deliver_after=timedelta(hours=2)))
        assert producer.send(Message("bill", b"z")).number is None
    assert "reminder" in said("delayed", "--log", place)
    told = json.loads(said("delayed", "--log", place, "--limit", "1", "--json"))
    assert told["messages"] == {"reminder": 2, "bill": 1}
    [first] = told["first"]
    assert (first["topic"], first["number"], first["messages"]) == ("reminder", one.number, 2)
    assert "is not delivered" in said("recall", "reminder", str(one.number), "--log", place)
    with open_log(place) as log:
        assert dict(log.delayed().messages) == {"bill": 1}
    assert other.number is not None
    with open_log(place, append=True) as log:
        log.recall("bill", other.number)
        with pytest.raises(MisuseError, match="nothing waits as number 7"):
            log.recall("bill", 7)
    assert said("delayed", "--log", place) == "nothing waits\n"


def test_recalls_waiting_for_a_move_do_not_block_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many recalls as the server has reading threads wait when a message is read."""
    received, is_moved = threading.Semaphore(0), threading.Event()
    received_by_api = LogApi.recall

    def recall(*_: object) -> None:
        assert is_moved.wait(60)

    async def receive(api: LogApi, request: pb.RecallInLogRequest) -> pb.RecallInLogReply:
        received.release()  # before the loop handles another request, the recall waits as intended
        return await received_by_api(api, request)

    monkeypatch.setattr(LocalLog, "recall", recall)
    monkeypatch.setattr(LogApi, "recall", receive)
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as log:
        with ThreadPoolExecutor(_READERS) as threads:
            recalls = [threads.submit(log.recall, "t", number) for number in range(_READERS)]
            try:
                assert all(received.acquire(timeout=60) for _ in recalls)
                assert log.ranges([LogQueue("t", 0)]), "read while they wait"
                assert not any(recall.done() for recall in recalls)
            finally:
                is_moved.set()
        assert [recall.result() for recall in recalls] == [None] * _READERS


def test_server_counts_waiting_messages(tmp_path: Path) -> None:
    port = f"127.0.0.1:{own_port()}"
    config = MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", http_listen=port)
    with served(config) as address, log_at(address) as log:
        LogProducer(log).send_many([Message("t", b"x", deliver_after=timedelta(hours=5))] * 3)
        until(lambda: scrape(port).value("txmsg_log_delayed_messages") == 3)
        assert scrape(port).value("txmsg_log_delayed_late_seconds") == 0
