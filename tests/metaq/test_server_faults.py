"""A MetaQ server and its clients, killed, suspended and disconnected from each other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.plan import Cut
from tests.metaq.logs import batch, bodies, readable
from tests.metaq.servers import WAIT_S, MetaQProcess, linked, log_at, served
from tests.raw_client import Answer, RawClient
from tests.waiting import until, until_told
from txmsg.errors import BrokerUnavailable, MembershipLost, MisuseError, OffsetOutOfRange, OutcomeUnknown
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.group import logs
from txmsg.metaq.group.logs import turn
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.log_api import LogApi
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.server.transfers import Transfer, Transfers
from txmsg.metaq.store.log import Append, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.runtime.child import ChildFailed
from txmsg.wire.frames import MORE, PART_SIZE_BYTES
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ


def one(topic: str, queue: int, body: str) -> Append:
    """Return a message at the end of a queue."""
    return Append(topic, queue, encode(FrameColumns([body.encode()], [1])))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaQProcess]:
    """A process shared by all tests of this module: each has its own topics."""
    root = tmp_path_factory.mktemp("server")
    process = MetaQProcess(root / "log", log=root / "server.log")
    yield process
    process.kill()


@pytest.fixture
def server(process: MetaQProcess) -> MetaQProcess:
    """The same, running."""
    if not process.is_started:
        process.start()
    return process


def test_server_killed_under_load_neither_loses_nor_duplicates_messages(
    server: MetaQProcess,
) -> None:
    """First with many callers; then with one append each, whose answer is lost before the server is killed."""
    acknowledged: list[tuple[str, int]] = []
    stopping = threading.Event()

    def append(name: int) -> None:
        with RemoteLog(server.address, timeout_s=WAIT_S) as log:
            number = 0
            while not stopping.is_set():
                body = f"{name}-{number}"
                [offset] = log.append([one("t", 0, body)])
                acknowledged.append((body, offset))
                number += 1

    with ThreadPoolExecutor(6) as pool, linked(server.address) as (link, near):
        crowd = [pool.submit(append, name) for name in range(4)]
        for _ in range(2):
            count = len(acknowledged)
            until(lambda count=count: len(acknowledged) > count + 50)  # type: ignore[misc]
            server.restart(kill=True)
        stopping.set()
        for each in crowd:
            each.result(WAIT_S)

        with RemoteLog(near, timeout_s=WAIT_S) as log:
            log.append([one("u", 0, "before")])
            link.cut(Cut.REPLIES_LOST)
            unplaced = pool.submit(log.append, [one("u", 0, "lost answer"), one("u", 1, "its sister")])
            placed = pool.submit(log.append, [batch("v", 0, 0, 3)])
            on_disk = LogReader(server.data_dir)
            until(lambda: (on_disk.queue("u", 1).end_offset(), on_disk.queue("v", 0).end_offset()) == (1, 3))
            server.restart(kill=True)
            link.heal()
            assert unplaced.result(WAIT_S) == [1, 0]
            assert placed.result(WAIT_S) == [0]
            with pytest.raises(MisuseError, match="offset 0 of topic v queue 0: the next one is 3"):
                log.append([batch("v", 0, 0, 3)])
    assert server.stop() == 0
    stored = readable(server.data_dir, "t", 0)
    assert len(stored) == len(set(stored)), "something is doubled"
    assert [stored[offset].decode() for _, offset in acknowledged] == [body for body, _ in acknowledged]
    assert readable(server.data_dir, "u", 0) == [b"before", b"lost answer"]
    assert readable(server.data_dir, "u", 1) == [b"its sister"]
    assert readable(server.data_dir, "v", 0) == bodies("v", 0, 0, 3)


def test_short_network_outage_is_retried_and_a_long_one_raises(server: MetaQProcess) -> None:
    queue = LogQueue("cut", 0)
    with linked(server.address) as (link, near), ThreadPoolExecutor(1) as pool:
        with RemoteLog(near, timeout_s=30) as log, log_at(server.address) as beside:
            waits = pool.submit(log.fetch, {queue: 0}, wait_s=WAIT_S)
            until(lambda: beside.describe().waiting == 1)
            link.cut(Cut.RESET)
            beside.append([batch("cut", 0, 0, 2)])
            link.heal()
            [found] = waits.result(WAIT_S)
            assert found.batches[0].end_offset == 2, "a wait goes on over a cut"
            for cut in (Cut.HALF_CLOSED, Cut.SOME_RESET):
                link.cut(cut)
                link.heal()
                assert log.ranges([queue]) == {queue: QueueRange(0, 2)}
        with RemoteLog(near, timeout_s=1) as reader, RemoteLog(near, timeout_s=1) as writer:
            until(lambda: is_answered(reader) and is_answered(writer))
            link.cut(Cut.SILENT)
            with pytest.raises(BrokerUnavailable, match="gave no answer in 1 s"):
                reader.topics()
            with pytest.raises(OutcomeUnknown, match="may have been carried out"):
                writer.append([one("cut", 0, "x")])
            with pytest.raises(BrokerUnavailable, match="cannot be reached"):
                writer.append(
                    [one("cut", 0, "y")]
                )  # over no connection that has been silent: certainly not carried out


def is_answered(log: RemoteLog) -> bool:
    try:
        log.topics()
    except BrokerUnavailable:  # it has not even connected in its time
        return False
    return True


def test_signal_stops_a_server_cleanly_and_waiting_fetches_continue_at_the_next(
    server: MetaQProcess, tmp_path: Path
) -> None:
    queue = LogQueue("signal", 0)
    logged_before = len(server.log.read_text())
    with RemoteLog(server.address, timeout_s=WAIT_S, session_s=300) as log, ThreadPoolExecutor(1) as pool:
        member = log.join("signalled", ["signal"])
        log.append([batch("signal", 0, 0, 1)])
        member.take_queues([queue])
        member.store({queue: 1})
        waits = pool.submit(log.fetch, {queue: 1}, wait_s=WAIT_S)
        until(lambda: log.describe().waiting == 1)
        assert server.stop() == 0
        assert " ERROR " not in server.log.read_text()[logged_before:]
        with RemoteLog(server.address, timeout_s=0.3) as impatient:
            until_told("cannot be reached", impatient.topics)
        server.start()
        with pytest.raises(MembershipLost, match="does not know this member"):
            member.view()
        assert log.join("signalled", ["signal"]).take_queues([queue]) == {queue: 1}
        log.append([batch("signal", 0, 1, 1)])
        assert [each.queue for each in waits.result(WAIT_S)] == [queue]
    taken = MetaQProcess(tmp_path / "other", log=tmp_path / "other.log", address=server.address)
    with pytest.raises(ChildFailed, match=f"cannot listen on {re.escape(server.address)}"):
        taken.start()


# ---- groups

MEMBER = """
import select, sys
from txmsg.errors import TxmsgError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.runtime.child import ChildFailed
member = RemoteLog(sys.argv[1], session_s=float(sys.argv[2])).join("g", ["t"])
member._session_s = 1e9  # as on a machine whose clock stopped with it
print(member.take_queues([LogQueue("t", int(each)) for each in sys.argv[3].split(",")]), flush=True)
is_silent = False
while True:
    if not is_silent and not select.select([sys.stdin], [], [], 0.3)[0]:
        member.view()  # so it goes on being one
        continue
    word, *place = sys.stdin.readline().split() or ["end"]
    if word == "end":
        break
    if word == "silence":
        is_silent = True
        print("silent", flush=True)
        continue
    queue, offset = map(int, place)
    try:
        member.store({LogQueue("t", queue): offset})
        print("stored", flush=True)
    except TxmsgError as exc:
        print(type(exc).__name__, flush=True)
"""


class RemoteProcess:
    """A member in its own process, which stores given offsets; once silent, it does nothing else."""

    def __init__(self, address: str, session_s: float, queues: str) -> None:
        command = [sys.executable, "-c", MEMBER, address, str(session_s), queues]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.taken = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _told(self, *words: object) -> str:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self._line()

    def store(self, queue: int, offset: int) -> str:
        return self._told("store", queue, offset)

    def be_silent(self) -> None:
        """Stop renewing the session."""
        assert self._told("silence") == "silent"

    def __enter__(self) -> RemoteProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_remaining_member_gets_all_messages_and_a_late_commit_is_refused(
    tmp_path: Path,
) -> None:
    session_s = 4.0  # of those that are to lose it
    config = MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")
    with ExitStack() as stack:
        address = stack.enter_context(served(config))
        log = stack.enter_context(RemoteLog(address, session_s=300))
        log.append([batch("t", queue, 0, 10) for queue in range(6)])
        starting = ThreadPoolExecutor(2)
        killed, stopped = starting.map(lambda queues: RemoteProcess(address, session_s, queues), ("0,1", "2,3"))
        starting.shutdown()
        stack.enter_context(killed)
        stack.enter_context(stopped)
        third = log.join("g", ["t"])
        wanted = [LogQueue("t", queue) for queue in range(6)]
        assert killed.store(0, 4) == stopped.store(2, 5) == "stored"
        taken = third.take_queues(wanted)
        assert taken == {LogQueue("t", 4): 0, LogQueue("t", 5): 0}
        killed.process.kill()
        stopped.be_silent()
        os.kill(stopped.process.pid, signal.SIGSTOP)

        def has_all() -> bool:
            third.view()
            taken.update(third.take_queues([each for each in wanted if each not in taken]))
            return len(taken) == len(wanted)

        until(has_all)
        assert [taken[each] for each in wanted] == [4, 0, 5, 0, 0, 0]
        assert [member.id for member in third.view().members] == [third.id]
        third.store({LogQueue("t", 2): 7})
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert stopped.store(2, 6) == "MembershipLost"
        assert {queue.queue.queue: queue.offset for queue in log.group("g").queues}[2] == 7
        assert {queue.owner for queue in log.group("g").queues} == {third.id}


# ---- readers that are slow, or late


def test_reader_gets_the_range_left_by_retention(tmp_path: Path) -> None:
    log_config = LogConfig(file_size_bytes_max=20_000, retention_size_bytes=60_000, checkpoint_s=0.05)
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", log=log_config)) as address:
        with log_at(address) as log:
            queue = LogQueue("t", 0)
            [first] = log.append([Append("t", 0, encode(FrameColumns([bytes(9000)], [1])))])
            for _ in range(20):
                log.append([Append("t", 0, encode(FrameColumns([bytes(9000)], [1])))])
            until(lambda: log.ranges([queue])[queue].begin > 0)
            [late] = log.fetch({queue: first})
            assert isinstance(late.error, OffsetOutOfRange)
            assert late.error.begin > 0
            assert late.error.end == 21
            # Retention may go on between the two requests.
            until(lambda: bool(log.fetch({queue: log.ranges([queue])[queue].begin})[0].batches))


def test_append_notes_do_not_retain_expired_files(tmp_path: Path) -> None:
    log_config = LogConfig(file_size_bytes_max=500, flush_s=0.02, checkpoint_s=0.05)
    with (
        served(MetaQConfig(data_dir=tmp_path, listen=f"unix:{tmp_path}/socket", log=log_config)) as address,
        log_at(address) as log,
    ):
        queue = LogQueue("t", 0)
        log.set_topic("t", TopicSettings(retention_s=600))
        for _ in range(5):
            log.append([Append("t", 0, encode(FrameColumns([b"x"], [1])))])
        assert log.ranges([queue])[queue] == (0, 5)
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (0, 0))
        until(lambda: log.ranges([queue])[queue] == (4, 5))


def unread(client: RawClient, topic: str, count: int) -> list[Answer]:
    """Start fetches whose replies are never read."""
    wanted = [pb.QueueOffsets(topic=topic, queue=[0], offset=[0])]
    request = pb.FetchRequest(wanted=wanted, size_bytes_max=1).SerializeToString()
    calls = [client.begin(MetaQ.fetch.name, request) for _ in range(count)]
    return [client.answers[call] for call in calls]


def has_ended(answers: list[Answer]) -> bool:
    return all(answer.is_whole for answer in answers)


@pytest.mark.parametrize(("connections", "fetches"), [(20, 1), (1, 20)])
def test_readers_that_do_not_read_replies_use_little_memory(
    server: MetaQProcess, connections: int, fetches: int
) -> None:
    """They read one piece, so that all are known to be receiving, and no more."""
    topic = f"slow-{connections}"
    queue = LogQueue(topic, 0)
    with log_at(server.address) as log, ExitStack() as readers:
        log.append([Append(topic, 0, encode(FrameColumns([bytes(1024 * 1024)] * 32, [1])))])
        log.fetch({queue: 0})
        before_bytes = anonymous_memory_bytes(server.pid)
        clients = [readers.enter_context(RawClient(server.address)) for _ in range(connections)]
        answers = [(client, unread(client, topic, fetches)) for client in clients]
        for client, mine in answers:
            while not any(answer.pushed or answer.is_whole for answer in mine):
                client.read()
        grown_bytes = anonymous_memory_bytes(server.pid) - before_bytes
        assert grown_bytes < 20 * 8 * 1024 * 1024, "20 readers of 32 MiB each"
        assert log.fetch({queue: 0})[0].batches[0].end_offset == 32, "a good reader goes on"
        assert anonymous_memory_bytes(server.pid) - before_bytes < 20 * 8 * 1024 * 1024


@pytest.fixture
def too_slow(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the number of fetches that servers of this process have ended for slowness."""
    ended: list[object] = []
    fetch_of_server = LogApi.fetch

    async def noted(self: LogApi, request: pb.FetchRequest, call: Any) -> None:
        try:
            await fetch_of_server(self, request, call)
        except OutcomeUnknown:
            ended.append(call)
            raise

    monkeypatch.setattr(LogApi, "fetch", noted)
    return ended


@pytest.mark.parametrize(("connections", "fetches"), [(4, 1), (1, 4)])
def test_readers_that_do_not_read_replies_are_ended_and_others_continue(
    tmp_path: Path, too_slow: list[object], connections: int, fetches: int
) -> None:
    config = MetaQConfig(
        data_dir=tmp_path, listen=f"unix:{tmp_path}/socket", send_timeout_s=1.5, sending_size_bytes_max=2**21
    )
    with served(config) as address, log_at(address) as log, ExitStack() as readers:
        log.append([Append("slow", 0, encode(FrameColumns([bytes(1024 * 1024)] * 32, [1])))])
        clients = [readers.enter_context(RawClient(address)) for _ in range(connections)]
        answers = [(client, unread(client, "slow", fetches)) for client in clients]
        assert log.fetch({LogQueue("slow", 0): 0})[0].batches[0].end_offset == 32
        until(lambda: len(too_slow) >= 2)
        for client, mine in answers:
            while not has_ended(mine):
                client.read()
        # Two had to be ended for the other two to be sent to; those may have been read in time.
        ended = [answer.error for _, mine in answers for answer in mine if answer.error is not None]
        assert len(ended) >= 2
        assert {type(error) for error in ended} == {OutcomeUnknown}
        assert {"fetch again" in str(error) for error in ended} == {True}


def test_fetch_that_waited_for_memory_reads_no_more_than_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if more has arrived meanwhile: one large batch is the limit for two readers."""
    waits = threading.Event()
    hold = Transfers.hold_bytes

    async def noted(self: Transfers, transfer: Transfer, size_bytes: int) -> None:
        if size_bytes < 1024:
            waits.set()
        await hold(self, transfer, size_bytes)

    monkeypatch.setattr(Transfers, "hold_bytes", noted)
    config = MetaQConfig(data_dir=tmp_path, listen=f"unix:{tmp_path}/socket", sending_size_bytes_max=2**21)
    with served(config) as address, log_at(address) as log, ThreadPoolExecutor(1) as late, ExitStack() as readers:
        log.append([Append("large", 0, encode(FrameColumns([bytes(4 * 1024 * 1024)], [1]))), one("t", 0, "small")])
        clients = [readers.enter_context(RawClient(address)) for _ in range(2)]
        for client in clients:
            (answer,) = unread(client, "large", 1)
            while not answer.pushed:
                client.read()
        fetched = late.submit(log.fetch, {LogQueue("t", 0): 0})
        assert waits.wait(WAIT_S)
        log.append([Append("t", 0, encode(FrameColumns([bytes(100_000)], [1])))])
        for client in clients:
            client.socket.close()
        [found] = fetched.result(WAIT_S)
        assert [batch.end_offset for batch in found.batches] == [1]


def test_unsent_data_of_an_ended_fetch_is_released(tmp_path: Path, too_slow: list[object]) -> None:
    """Else a reader that does not read makes its server hold another piece for each fetch that ends."""
    config = MetaQConfig(
        data_dir=tmp_path, listen=f"unix:{tmp_path}/socket", send_timeout_s=0.5, sending_size_bytes_max=2**21
    )
    with served(config) as address, log_at(address) as log, RawClient(address) as reader:
        log.append([Append("kept", 0, encode(FrameColumns([bytes(4 * 1024 * 1024)], [1])))])
        answers = unread(reader, "kept", 8)
        until(lambda: len(too_slow) == 8)
        while not has_ended(answers):
            reader.read()
        assert {type(answer.error) for answer in answers} == {OutcomeUnknown}
        # Data in the kernel, data waiting for it, and a part of each reply being sent.
        assert reader.read_bytes < 2 * 1024 * 1024 + 8 * PART_SIZE_BYTES


def anonymous_memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def test_slow_large_append_does_not_block_others(tmp_path: Path) -> None:
    config = MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", arriving_size_bytes_max=16 * 1024 * 1024)
    with served(config) as address, log_at(address) as log, RawClient(address) as slow:
        calls = [slow.begin(MetaQ.append.name, b"x", flags=MORE) for _ in range(4)]
        assert slow.answer(slow.begin(MetaQ.describe.name, b"")).reply is not None, "they have begun by then"
        assert log.append([one("t", 0, "small")]) == [0]
        assert log.append([Append("t", 0, encode(FrameColumns([bytes(8 * 1024 * 1024)], [1])))]) == [1]
        assert slow.answer(slow.begin(MetaQ.describe.name, b"")).reply is not None
        assert not any(slow.answers[call].is_whole for call in calls), "they hold next to nothing"


def test_hundreds_of_unread_fetches_do_not_block_other_readers(server: MetaQProcess) -> None:
    with log_at(server.address) as log, ExitStack() as readers:
        log.append([Append("unread", 0, encode(FrameColumns([bytes(8 * 1024 * 1024)], [1])))])
        before_bytes = anonymous_memory_bytes(server.pid)
        clients = [readers.enter_context(RawClient(server.address)) for _ in range(3)]
        for client in clients:
            unread(client, "unread", 50)
        assert log.fetch({LogQueue("unread", 0): 0})[0].batches[0].end_offset == 1
        assert anonymous_memory_bytes(server.pid) - before_bytes < 400 * 1024 * 1024
        for client in clients:
            for call in list(client.answers):
                client.cancel(call)
        assert log.fetch({LogQueue("unread", 0): 0})[0].batches[0].end_offset == 1, "also when they are cancelled"


def test_waiting_append_does_not_block_appends_of_other_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronous one waits for the disk, one to a group's retries for a member that is appending."""
    free, waits = threading.Event(), threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(logs, "_WAIT_S_MAX", 600.0)

    def slow_sync(fd: int) -> None:
        if threading.current_thread().name.startswith("txmsg-metaq-append"):
            waits.set()
            assert free.wait(WAIT_S)
        sync(fd)

    config = MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0", log=LogConfig(flush_s=3600))
    with served(config) as address, log_at(address) as log, ThreadPoolExecutor(2) as others:
        log.set_topic("timed", TopicSettings(flush=Flush.TIMED))
        log.append([batch("timed", 0, 0, 1)])  # the first one has its queue named, on disk
        log.join("g", ["t"]).leave({})
        with turn(tmp_path / "log/groups/g/retries.lock"):
            retry = others.submit(log.append, [batch("%RETRY%g", 0, 0, 1)])
            until(lambda: log.describe().appending_bytes)
            log.append([batch("sync", 0, 0, 1)])
            monkeypatch.setattr(os, "fdatasync", slow_sync)
            synced = others.submit(log.append, [batch("sync", 0, 1, 1)])
            try:
                assert waits.wait(WAIT_S)
                assert log.append([batch("timed", 0, 1, 1)]) == [1]
                assert not synced.done()
            finally:
                free.set()
            assert synced.result(WAIT_S) == [1]
            assert not retry.done()
        assert retry.result(WAIT_S) == [0]
