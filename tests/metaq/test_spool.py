"""The spool on disk, its relaying thread, and `LogProducer(spool=...)`."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.waiting import until
from txmsg.errors import BrokerUnavailable, CorruptLog, LogBusy, MisuseError, Overloaded, StorageError
from txmsg.message import Message
from txmsg.metaq import Acks, LogProducer, LogQueue, TopicSettings, open_log
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.relay import SpooledLog
from txmsg.metaq.spool import SIZE_BYTES_MIN, Spool
from txmsg.metaq.store.log import Append

_BODY = b"x" * 50_000


def _append(*bodies: bytes, topic: str = "t", queue: int = 0) -> Append:
    return Append(
        topic, queue, encode(FrameColumns(body=bodies, stored_at_us=[1], transaction_id=b"i" * 16 * len(bodies)))
    )


def _waiting(spool: Spool) -> list[Append]:
    found: list[Append] = []
    while not spool.is_empty:
        appends, mark = spool.head(size_bytes_max=1, count_max=1)
        found += appends
        spool.done(mark)
    return found


def _parts(appends: Sequence[Append]) -> list[tuple[str, int, bytes]]:
    return [(append.topic, append.queue, bytes(append.payload.parts[0])) for append in appends]


class UnavailableLog:
    """A log that refuses appends until it is back."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.appended: list[Append] = []
        self.refused = 0

    def append(self, appends: Sequence[Append]) -> list[int]:
        if not self.is_back.is_set():
            self.refused += 1
            raise BrokerUnavailable("it is away")
        self.appended += appends
        return [0] * len(appends)

    def settings_of(self, topic: str) -> TopicSettings:
        return TopicSettings(compression=Compression.LZ4)


def test_spooled_batches_are_present_in_order_after_a_restart(tmp_path: Path) -> None:
    puts = [[_append(b"%d" % n, topic=f"t{n % 3}", queue=n % 2), _append(b"second")] for n in range(20)]
    spool = Spool(tmp_path / "spool")
    for put in puts:
        spool.put_batches(put)
    appends, mark = spool.head(size_bytes_max=10_000_000, count_max=4)
    spool.done(mark)
    spool.close()
    again = Spool(tmp_path / "spool")
    assert _parts(appends) == _parts([*puts[0], *puts[1]])
    assert _parts(_waiting(again)) == _parts([append for put in puts[2:] for append in put])
    assert again.waiting_size_bytes == 0
    again.close()


@pytest.mark.parametrize("left", [1, 100, 150, -1])
def test_torn_end_of_a_spool_is_truncated(tmp_path: Path, left: int) -> None:
    """All of the put: its batches are sent together or not at all."""
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"whole")])
    begin = spool.size_bytes
    spool.put_batches([_append(b"first of two"), _append(b"second of two")])
    spool.close()
    [file] = tmp_path.glob("*.spool")
    os.truncate(file, begin + left if left > 0 else file.stat().st_size + left)
    again = Spool(tmp_path)
    assert again.size_bytes == begin
    again.put_batches([_append(b"next")])
    first, second = _parts(_waiting(again))
    assert b"whole" in first[2]
    assert b"next" in second[2]
    again.close()


def test_damage_before_intact_batches_is_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"damaged")])
    spool.put_batches([_append(b"whole")])
    spool.close()
    [file] = tmp_path.glob("*.spool")
    data = bytearray(file.read_bytes())
    data[110] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLog, match=r"damaged at byte 0 .* move the file away"):
        Spool(tmp_path)


def test_spool_continues_after_a_damaged_file_was_moved_away(tmp_path: Path) -> None:
    """The relay progress of the moved file does not apply to a new file with its number."""
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"relayed")])
    assert len(_waiting(spool)) == 1
    spool.put_batches([_append(b"damaged")])
    spool.put_batches([_append(b"whole")])
    spool.close()
    [file] = tmp_path.glob("*.spool")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for _ in range(2):  # the failed attempt holds no lock
        with pytest.raises(CorruptLog):
            Spool(tmp_path)
    file.rename(tmp_path / "moved")
    spool = Spool(tmp_path)
    assert spool.is_empty
    assert spool.waiting_size_bytes == 0
    spool.put_batches([_append(b"relayew")])
    spool.close()
    again = Spool(tmp_path)
    [found] = _parts(_waiting(again))
    assert b"relayew" in found[2]
    again.close()


@pytest.mark.parametrize("name", ["bad-1.spool", "1.spool", "².spool"])
def test_renamed_file_is_ignored(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "s"
    spool = Spool(directory)
    spool.put_batches([_append(b"set aside")])
    spool.close()
    (directory / "00000001.spool").rename(directory / name)
    spool = Spool(directory)
    spool.put_batches([_append(b"goes on")])
    spool.close()
    spool = Spool(directory)
    assert _parts(_waiting(spool)) == _parts([_append(b"goes on")])
    spool.close()
    assert (directory / name).stat().st_size


def test_unexpected_error_at_opening_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Spool, "_recover", Mock(side_effect=ValueError("unforeseen")))
        with pytest.raises(ValueError, match="unforeseen") as kept:  # the traceback keeps the spool alive
            Spool(tmp_path / "s")
        patched.undo()
        Spool(tmp_path / "s").close()
        del kept


def test_full_spool_refuses_batches_and_frees_space_when_relayed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, size_bytes_max=SIZE_BYTES_MIN)
    count = SIZE_BYTES_MIN // 50_200
    for _ in range(count):
        spool.put_batches([_append(_BODY)])
    with pytest.raises(Overloaded, match=r"holds \d+ bytes"):
        spool.put_batches([_append(_BODY)])
    assert sum(file.stat().st_size for file in tmp_path.glob("*.spool")) == spool.size_bytes <= SIZE_BYTES_MIN
    assert len(_waiting(spool)) == count
    for _ in range(3 * count):  # more than it holds at once
        spool.put_batches([_append(_BODY)])
        assert len(_waiting(spool)) == 1
    spool.close()


def test_batch_larger_than_the_spool_is_accepted_when_it_is_empty(tmp_path: Path) -> None:
    spool = Spool(tmp_path, size_bytes_max=SIZE_BYTES_MIN)
    spool.put_batches([_append(b"x" * 2 * SIZE_BYTES_MIN)])
    with pytest.raises(Overloaded):
        spool.put_batches([_append(b"small")])
    assert len(_waiting(spool)) == 1
    spool.put_batches([_append(b"small")])
    assert len(_waiting(spool)) == 1
    spool.close()


def test_full_disk_leaves_the_spool_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, size_bytes_max=SIZE_BYTES_MIN)
    large = _append(b"x" * (SIZE_BYTES_MIN // 8))
    spool.put_batches([large])  # the next one begins a file
    open_file = os.open

    def full(path: str | Path, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(".spool"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_file(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(StorageError, match="No space left"):
            spool.put_batches([large])
    foreign = os.open(tmp_path / "foreign", os.O_RDWR | os.O_CREAT)
    spool.put_batches([large])
    assert os.fstat(foreign).st_size == 0
    os.close(foreign)
    assert _parts(_waiting(spool)) == _parts([large, large])
    spool.close()


def test_relayed_files_are_deleted_even_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, size_bytes_max=SIZE_BYTES_MIN)
    large = [_append(bytes([number]) * (SIZE_BYTES_MIN // 8)) for number in range(3)]
    for each in large:  # a file each
        spool.put_batches([each])

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        _, mark = spool.head(size_bytes_max=1, count_max=1)
        with pytest.raises(StorageError, match="No space left"):
            spool.done(mark)
    assert [path.name for path in sorted(tmp_path.glob("*.spool"))] == ["00000002.spool", "00000003.spool"]
    spool.close()
    spool = Spool(tmp_path, size_bytes_max=SIZE_BYTES_MIN)
    assert _parts(_waiting(spool)) == _parts(large[1:])
    spool.close()


def test_spool_refuses_batches_after_a_failed_sync_until_it_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"kept")])

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(StorageError, match="cannot be synced"):
            spool.put_batches([_append(b"lost")])
    with pytest.raises(StorageError, match="open it again"):  # although the disk reports success
        spool.put_batches([_append(b"refused")])
    spool.close()
    again = Spool(tmp_path)
    again.put_batches([_append(b"next")])
    kept, following = _parts(_waiting(again))
    assert b"kept" in kept[2]
    assert b"next" in following[2]
    again.close()


def test_batches_relayed_before_a_failed_sync_are_not_relayed_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    marks = []

    def failing(_: int) -> None:
        marks.append(spool.head(size_bytes_max=1, count_max=1)[1])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(StorageError):
            spool.put_batches([_append(b"relayed meanwhile")])
    spool.done(marks[0])
    assert spool.is_empty
    assert spool.waiting_size_bytes == 0
    spool.close()


def test_batches_before_damage_are_relayed_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"whole")])
    begin = spool.size_bytes
    spool.put_batches([_append(b"first of two"), _append(b"damaged")])
    [file] = tmp_path.glob("*.spool")
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    [append], mark = spool.head(size_bytes_max=1_000_000, count_max=100)
    assert b"whole" in _parts([append])[0][2]
    assert mark.at == begin
    spool.done(mark)
    with pytest.raises(CorruptLog, match="is damaged"):
        spool.head(size_bytes_max=1_000_000, count_max=100)
    spool.close()


def test_relay_progress_after_close_is_not_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_batches([_append(b"sent")])
    _, mark = spool.head(size_bytes_max=1, count_max=1)
    spool.close()
    foreign = [os.open(tmp_path / f"foreign{n}", os.O_RDWR | os.O_CREAT) for n in range(4)]
    spool.done(mark)
    assert [os.fstat(fd).st_size for fd in foreign] == [0] * 4
    for fd in foreign:
        os.close(fd)
    again = Spool(tmp_path)
    assert len(_waiting(again)) == 1
    again.close()


def test_second_process_cannot_open_a_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(LogBusy, match="directory of its own"):
        Spool(tmp_path)
    child = os.fork()
    if not child:
        try:
            spool.put_batches([_append(b"x")])
        except MisuseError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    spool.close()
    Spool(tmp_path).close()


def test_threads_can_put_concurrently(tmp_path: Path) -> None:
    spool = Spool(tmp_path, size_bytes_max=8 * SIZE_BYTES_MIN)

    def put(thread: int) -> None:
        for n in range(50):
            spool.put_batches([_append(b"%d %d" % (thread, n), b"x" * 5000, queue=thread)])

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = _waiting(spool)
    assert len(found) == 200
    for queue in range(4):
        mine = [parts for parts in _parts(found) if parts[1] == queue]
        assert [b"%d %d" % (queue, n) in parts[2] for n, parts in enumerate(mine)] == [True] * 50
    spool.close()


def test_sends_return_while_the_log_is_down_and_are_relayed_in_order(tmp_path: Path) -> None:
    log = UnavailableLog()
    with LogProducer(log, queues=1, spool=tmp_path) as producer:
        places = [producer.send(Message("t", b"%d" % n)) for n in range(30)]
        assert {place.offset for place in places} == {-1}
        until(lambda: log.refused > 2)
        assert log.appended == []
        log.is_back.set()
        until(lambda: sum(append.payload.count for append in log.appended) == 30)
        producer.send(Message("t", b"compressible" * 1000))
        until(lambda: len(log.appended) == 31)
        assert log.appended[-1].payload.compression is Compression.LZ4  # as the topic asks, once that is known
    producer.close()
    with pytest.raises(MisuseError, match="closed"):
        producer.send(Message("t", b"late"))


def test_invalid_spool_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="1048576 at least"):
        LogProducer(UnavailableLog(), spool=tmp_path, spool_size_bytes_max=10)


def test_spool_with_acks_none_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", append=True) as log, pytest.raises(MisuseError, match=r"Acks\.NONE"):
        LogProducer(log, spool=tmp_path / "spool", acks=Acks.NONE)


def test_a_delayed_message_is_not_spooled(tmp_path: Path) -> None:
    """The log may refuse its delay, and later messages would wait for ever."""
    with LogProducer(UnavailableLog(), spool=tmp_path) as producer:
        with pytest.raises(MisuseError, match="without spool="):
            producer.send_many([Message("t", b""), Message("t", b"", deliver_after=timedelta(hours=1))])
    assert Spool(tmp_path).is_empty


def test_closing_a_spooled_log_keeps_waiting_batches(tmp_path: Path) -> None:
    away = UnavailableLog()
    with LogProducer(away, spool=tmp_path) as producer:
        producer.send(Message("t", b"left"))
    log = UnavailableLog()
    log.is_back.set()
    spooled = SpooledLog(log, Spool(tmp_path))
    until(lambda: log.appended)
    spooled.close()
    assert b"left" in bytes(log.appended[0].payload.parts[0])


_SENDER = """
import sys
from txmsg.metaq import Acks, LogProducer, open_log
from txmsg.message import Message
producer = LogProducer(open_log(sys.argv[1], timeout_s=1), queues=1, spool=sys.argv[2])
n = int(sys.argv[3])
while True:
    producer.send_many([Message("t", b"%d" % (n + i)) for i in range(10)])
    n += 10
    print(n, flush=True)
"""


def test_killed_producers_lose_no_spooled_message(tmp_path: Path) -> None:
    """Killed and restarted while the log is down, then the log returns: every send that returned arrives, in order."""
    sent = 0
    for _ in range(3):
        sender = subprocess.Popen(
            [sys.executable, "-c", _SENDER, f"unix:{tmp_path}/no-server", str(tmp_path / "spool"), str(sent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sender.stdout is not None
        for _ in range(5):
            sent = int(sender.stdout.readline())
        sender.send_signal(signal.SIGKILL)
        rest = sender.communicate()[0].split()
        sent = int(rest[-1]) if rest else sent
    with open_log(tmp_path / "log", append=True) as log, LogProducer(log, queues=1, spool=tmp_path / "spool") as last:
        last.send(Message("t", b"last"))
        until(lambda: b"last" in _bodies(log)[-1:])
        bodies = _bodies(log)
    first = list(dict.fromkeys(bodies))
    # A put that had not returned when its process was killed may be stored too, and is sent again as a new one.
    assert [int(body) for body in first[:-1]] == list(range(int(first[-2]) + 1))
    assert int(first[-2]) >= sent - 1


def _bodies(log: LogAccess) -> list[bytes]:
    queue = LogQueue("t", 0)
    if not log.ranges([queue])[queue].end:
        return []
    found = log.fetch({queue: 0}, size_bytes_max=100_000_000)
    return [message.body for each in found for batch in each.batches for message in batch.messages()]
