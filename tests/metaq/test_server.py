"""A log at the address of a server: the same as in a directory, for any bytes over the wire."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.errors_page import is_documented
from tests.metaq.logs import batch, bodies, frames, readable
from tests.metaq.servers import WAIT_S, served
from tests.raw_client import RawClient
from tests.waiting import until, until_told
from txmsg.errors import (
    CorruptLog,
    InvalidName,
    MisuseError,
    OffsetOutOfRange,
    OffsetsMissing,
    ProtocolError,
    StorageError,
)
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import Compression, FrameColumns, Payload, encode, hole, pack
from txmsg.metaq.interface import NOTES, Fetched, LogAccess, LogQueue, QueueRange
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.protocol import PIECE_SIZE_BYTES, batches_of_frames
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.failures import was_told
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ

T = LogQueue("t", 0)


def frame_of(batch: FrameBatch) -> bytes:
    """Return the stored frame of a batch, byte for byte."""
    header = batch.header
    payload = Payload(
        (batch.stored, bytes(-len(batch.stored) & 7)),
        header.payload_size_bytes,
        header.raw_size_bytes,
        header.payload_crc,
        header.compression,
        header.kind,
        header.columns,
        header.count,
        header.first_stored_at_us,
        header.last_stored_at_us,
    )
    parts = pack(
        payload,
        header.topic.encode(),
        header.queue,
        header.base_offset,
        position=header.position,
        log_id=header.log_id,
        synced=header.synced,
        generation=header.generation,
    )
    return b"".join(map(bytes, parts))


def held(fetched: Fetched) -> list[bytes]:
    return [body for each in fetched.batches for body in each.to_arrow()["body"].to_pylist()]


def at_end(topic: str, queue: int, start: int, count: int) -> Append:
    """Return a batch without an offset."""
    return batch(topic, queue, start, count)._replace(base_offset=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "log"


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """A server shared by all tests of this module: each has its own topics."""
    config = MetaQConfig(data_dir=root, listen="127.0.0.1:0", log=LogConfig(file_size_bytes_max=64 * 1024 * 1024))
    with served(config) as address:
        yield address


@pytest.fixture
def log(address: str) -> Iterator[RemoteLog]:
    with RemoteLog(address, timeout_s=30) as log:
        yield log


# ---- the same as in a directory


def test_frames_are_served_as_stored_on_disk(log: RemoteLog, root: Path) -> None:
    compressed = encode(FrameColumns([b"x" * 5000] * 3, [1, 2, 3], key=["a", "", "b"]), Compression.ZSTD)
    assert log.append([batch("disk", 7, 0, 5), Append("disk", 7, compressed, 5)]) == [0, 5]
    [fetched] = log.fetch({LogQueue("disk", 7): 0})
    on_disk = LogReader(root)
    [plain, zstd] = [each.header for each in frames(fetched)]
    assert (plain.compression, zstd.compression) == (Compression.NONE, Compression.ZSTD)
    for each in frames(fetched):
        stands = on_disk.commit_log.read(each.header.position, each.header.size_bytes)
        assert frame_of(each) == bytes(stands)
    assert held(fetched) == bodies("disk", 7, 0, 5) + [b"x" * 5000] * 3
    [again] = log.fetch({LogQueue("disk", 7): 3})
    assert held(again)[:2] == bodies("disk", 7, 3, 2)


def test_uncompressed_batch_is_read_without_copying(log: RemoteLog) -> None:
    log.append([batch("views", 0, 0, 100)])
    [fetched] = log.fetch({LogQueue("views", 0): 0})
    [found] = frames(fetched)
    assert isinstance(found.stored, memoryview)
    body = found.to_arrow()["body"].buffers()[2]
    begin = fetched.batches[0].to_arrow()["body"].buffers()[2].address
    assert body.address == begin, "two readings of a batch stand on the same bytes"


def test_server_raises_the_same_errors_as_a_directory(log: RemoteLog, address: str) -> None:
    log.append([batch("errors", 0, 0, 2), Append("errors", 1, hole(9, 1), 0)])
    wrong, missing, empty = log.fetch({LogQueue("errors", 0): 5, LogQueue("errors", 1): 3, LogQueue("errors", 2): 1})
    assert isinstance(wrong.error, OffsetOutOfRange)
    assert (wrong.error.begin, wrong.error.end) == (0, 2)
    assert isinstance(missing.error, OffsetsMissing)
    assert (missing.error.begin, missing.error.end) == (0, 9)
    assert isinstance(empty.error, OffsetOutOfRange)
    with pytest.raises(MisuseError, match="offset 7 of topic errors queue 0: the next one is 3; nothing was appended"):
        log.append([batch("errors", 0, 2, 1), batch("errors", 0, 7, 1)])
    assert log.ranges([LogQueue("errors", 0)])[LogQueue("errors", 0)] == QueueRange(0, 2)
    with pytest.raises(InvalidName, match="is not a valid name"):
        log.append([batch("../up", 0, 0, 1)])
    with pytest.raises(InvalidName):
        log.fetch({LogQueue("../up", 0): 0})
    with pytest.raises(MisuseError, match="queue 99999"):
        log.append([batch("errors", 99_999, 0, 1)])
    with pytest.raises(MisuseError, match="would reach from 9 to 4: offsets rise"):
        log.append([Append("errors", 1, hole(4, 1))])
    with pytest.raises(InvalidName, match="log's own"):
        log.append([batch(NOTES, 0, 0, 1)])
    log.close()
    with pytest.raises(MisuseError, match="was closed"):
        log.topics()


def test_large_batch_is_sent_and_fetched_in_pieces(log: RemoteLog) -> None:
    body = bytes(range(256)) * 4096 * 3
    large = encode(FrameColumns([body, b"", body], [1]))
    assert large.size_bytes > 5 * PIECE_SIZE_BYTES
    assert log.append([batch("large", 0, 0, 1), Append("large", 0, large), batch("large", 0, 4, 1)]) == [0, 1, 4]
    [fetched] = log.fetch({LogQueue("large", 0): 0}, size_bytes_max=64 * 1024 * 1024)
    assert held(fetched) == [b"large/0/0", body, b"", body, b"large/0/4"]


def test_fetch_in_several_pieces_equals_one_from_a_directory(log: RemoteLog, root: Path) -> None:
    queue, other = LogQueue("pieces", 0), LogQueue("pieces", 1)
    sizes = [100_000] * 25 + [3_000_000] + [300_000] * 5
    for number, size_bytes in enumerate(sizes):
        log.append([Append(*queue, encode(FrameColumns([bytes([number]) * size_bytes], [1])))])
    log.append([batch("pieces", 1, 0, 2), Append(*other, hole(9, 1))])
    with open_log(root) as local:
        [whole, of_other] = local.fetch({queue: 0, other: 0}, size_bytes_max=2**26)
        assert (len(whole.batches), len(of_other.batches)) == (31, 1)
        for size_bytes_max in (1, 150_000, 2**20, 2_000_000, 4_000_000, 2**26):
            found = log.fetch({queue: 0, other: 0}, size_bytes_max=size_bytes_max)
            count = len(found[0].batches)
            assert [each.frame for each in frames(found[0])] == [each.frame for each in frames(whole)[:count]]
            assert found[0].size_bytes <= size_bytes_max or count == 1
        assert held(found[0]) == held(whole)
        assert held(found[1]) == held(of_other)
        assert found[1].error is None, "the hole behind it is told by the next fetch"


def test_topic_settings_are_stored_and_returned(log: RemoteLog, root: Path) -> None:
    assert log.settings_of("settings") == TopicSettings()
    settings = TopicSettings(flush=Flush.TIMED, compression=Compression.LZ4, retention_s=60.5)
    log.set_topic("settings", settings)
    assert log.settings_of("settings") == settings
    with open_log(root) as local:
        assert local.settings_of("settings") == settings
    assert log.append([at_end("settings", 0, 0, 3)]) == [0]
    log.flush()
    assert readable(root, "settings", 0) == bodies("settings", 0, 0, 3)
    assert NOTES not in log.topics(), "the server's own topic is nobody's concern"
    with pytest.raises(InvalidName):
        log.set_topic(NOTES, settings)


def test_messages_are_found_by_key_and_offsets_by_time(log: RemoteLog) -> None:
    columns = FrameColumns(
        [b"1", b"2", b"3"], [10, 20, 30], transaction_id=bytes(range(48)), key=["k", "", "k"], tag=["", "", "t"]
    )
    log.append([Append("found", 2, encode(columns)), Append("found", 2, encode(FrameColumns([b"4"], [40])))])
    first, third = log.find("found", "k")
    assert (first.body, first.tag, first.id_bytes, first.queue, first.offset) == (b"1", None, bytes(range(16)), 2, 0)
    assert (third.body, third.tag, third.stored_at_us, third.key) == (b"3", "t", 30, "k")
    assert log.find("found", "k", count_max=1) == [first]
    assert log.find("found", "") == [], "an empty key is none"
    queue = LogQueue("found", 2)
    assert [log.offsets_at([queue], us)[queue] for us in (0, 31, 41)] == [0, 3, 4]


def test_frames_damaged_or_lost_in_transit_are_refused(log: RemoteLog) -> None:
    queue = LogQueue("damaged", 0)
    log.append(
        [batch("damaged", 0, 0, 2), batch("damaged", 0, 2, 1), batch("damaged", 0, 3, 1), batch("other", 0, 0, 2)]
    )
    [fetched, other] = log.fetch({queue: 0, LogQueue("other", 0): 0})
    sent = [frame_of(each) for each in (*frames(fetched), *frames(other))]
    assert len(batches_of_frames(queue, 1, b"".join(sent[:3]))[0]) == 3
    flipped = [sent[1][:at] + bytes([sent[1][at] ^ 1]) + sent[1][at + 1 :] for at in (3, 9, 50, 97, 105)]
    for second in (*flipped, sent[2], sent[3], sent[1][:-8]):
        batches, error = batches_of_frames(queue, 1, sent[0] + second)
        assert [(each.base_offset, each.end_offset) for each in batches] == [(1, 2)]
        assert isinstance(error, CorruptLog)
        assert is_documented(error), error
        assert batches_of_frames(queue, 3, second)[0] == () or second is sent[2]


# ---- long polls


def test_waiting_fetch_ends_only_with_an_append_to_its_queues(log: RemoteLog, address: str) -> None:
    one, other = LogQueue("polled", 0), LogQueue("polled", 1)
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(log.fetch, {one: 0}, wait_s=WAIT_S)
        waits_for_both = pool.submit(log.fetch, {other: 0, one: 0}, wait_s=WAIT_S)
        until(lambda: log.describe().waiting == 2)
        log.append([batch("polled", 1, 0, 1)])
        assert [held(each) for each in waits_for_both.result(WAIT_S)] == [bodies("polled", 1, 0, 1)]
        assert not waits.done()
        log.append([batch("polled", 0, 0, 2)])
        assert [held(each) for each in waits.result(WAIT_S)] == [bodies("polled", 0, 0, 2)]
    assert log.describe().waiting == 0


def test_waiting_fetch_ends_at_its_timeout_or_when_the_log_is_closed(log: RemoteLog, address: str) -> None:
    assert log.fetch({LogQueue("silent", 0): 0}, wait_s=0.05) == []
    other = RemoteLog(address)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.fetch, {LogQueue("silent", 0): 0}, wait_s=WAIT_S)
        until(lambda: log.describe().waiting == 1)
        other.close()
        assert waits.result(WAIT_S) == []
    until(lambda: log.describe().waiting == 0)


def test_thousand_waiting_fetches_use_no_threads_and_no_reads(
    log: RemoteLog, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    looked: list[object] = []
    fetch_of_directory = LocalLog.fetch

    def counted(self: LocalLog, wanted: Any, **options: Any) -> list[Fetched]:
        looked.append(wanted)
        return fetch_of_directory(self, wanted, **options)

    monkeypatch.setattr(LocalLog, "fetch", counted)
    wanted = [pb.QueueOffsets(topic="many", queue=[0], offset=[0])]
    request = pb.FetchRequest(wanted=wanted, wait_ms=60_000, size_bytes_max=1).SerializeToString()
    with RawClient(address) as client:
        calls = [client.begin(MetaQ.fetch.name, request) for _ in range(900)]
        until(lambda: log.describe().waiting == 900 and len(looked) == 2 * 900)
        log.append([batch("many", 1, 0, 1)])
        log.append([batch("many", 2, 0, 1)])
        assert len(looked) == 2 * 900, "who waits looks again, though nothing has come for it"
        log.append([batch("many", 0, 0, 1)])
        assert all(len(client.answer(call).pushed) == 1 for call in calls)
        assert {client.answer(call).error for call in calls} == {None}
    assert log.describe().waiting == 0
    assert threading.active_count() < before + 100, "a thread for each"


# ---- appending


def test_concurrent_callers_get_their_own_offsets(log: RemoteLog, root: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        counts = [1 + number % 3 for number in range(100)]
        bases = list(
            pool.map(lambda count: log.append([Append("crowd", 0, encode(FrameColumns([b"x"] * count, [1])))]), counts)
        )
    taken = sorted((base, count) for [base], count in zip(bases, counts, strict=True))
    assert [base for base, _ in taken] == [sum(count for _, count in taken[:place]) for place in range(100)]
    assert len(readable(root, "crowd", 0)) == sum(counts)


def test_invalid_append_does_not_affect_others_of_its_group(log: RemoteLog, root: Path) -> None:
    def append(number: int) -> object:
        try:
            if number % 5 == 0:
                return log.append([at_end("spoilt", 1, 0, 1), batch("spoilt", 0, 10**6, 1)])
            return log.append([at_end("spoilt", 0, 0, 1)])
        except MisuseError as exc:
            return exc

    log.append([at_end("spoilt", 0, 0, 1)])
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(append, range(100)))
    assert [isinstance(outcome, MisuseError) for outcome in outcomes] == [number % 5 == 0 for number in range(100)]
    assert len(readable(root, "spoilt", 0)) == 81
    assert readable(root, "spoilt", 1) == []


# ---- invalid requests


def test_batch_unreadable_for_consumers_is_refused(address: str, root: Path) -> None:
    """Each is wrong in one way, under a correct checksum."""
    good = encode(FrameColumns([b"one", b"two"], [5], key=["a", "bc"]))
    raw = bytes(good.parts[0])
    from google_crc32c import value as crc32c

    def wire(*, payload: bytes = raw, **changes: Any) -> tuple[pb.AppendBatch, bytes]:
        values: dict[str, Any] = {
            "topic": "broken", "queue": 0, "size": len(payload), "raw_size": len(raw), "columns": good.columns,
            "count": 2, "first_stored_at_us": 5, "last_stored_at_us": 5,
        }  # fmt: skip
        values |= changes
        values.setdefault("payload_crc", crc32c(payload))
        return pb.AppendBatch(**values), payload

    wrong_ends = raw[:4] + (2**31 - 1).to_bytes(4, "little") + raw[8:]
    wrong_text = raw.replace(b"abc", b"\xff\xfec")
    assert wrong_text != raw
    bad = {
        "checksum": wire(payload_crc=1),
        "more messages than values": wire(count=3),
        "no messages": wire(count=0),
        "values that go beyond the end": wire(payload=wrong_ends),
        "text that is none": wire(payload=wrong_text),
        "too short": wire(payload=raw[:-8], raw_size=len(raw) - 8),
        "too long": wire(payload=raw + bytes(8), raw_size=len(raw) + 8),
        "another size": wire(raw_size=len(raw) + 8),
        "fewer bytes than it has": wire(size=len(raw) + 8),
        "more bytes than it has": wire(size=len(raw) - 8),
        "unknown columns": wire(columns=good.columns | 1 << 14),
        "no body": wire(columns=16),
        "unknown compression": wire(compression=9),
        "not compressed": wire(compression=2),
        "a kind of its own": wire(kind=2),
        "unknown kind": wire(kind=77),
        "times in the wrong order": wire(first_stored_at_us=6),
        "times that are not its own": wire(last_stored_at_us=6),
        "a hole of the wrong size": wire(kind=1, count=0, columns=0),
    }
    with BlockingChannel(address, kind="MetaQ server") as channel:

        def ask(batch: pb.AppendBatch, payload: bytes) -> pb.AppendReply:
            head = pb.AppendHead(producer_id=bytes(16), sequence=1, settled=1, batches=[batch])
            return channel.call(MetaQ.append, pb.AppendRequest(head=head), data=[payload], timeout_s=WAIT_S)

        for name, each in bad.items():
            with pytest.raises(ProtocolError) as caught:
                ask(*each)
            assert was_told(caught.value), f"{name}: {caught.value}"
            assert is_documented(caught.value), f"{name}: {caught.value}"
        assert not (root / "queues" / "broken").exists()
        assert list(ask(*wire()).base_offset) == [0]
    assert readable(root, "broken", 0) == [b"one", b"two"]


def test_invalid_request_bytes_get_a_readable_error(address: str, log: RemoteLog) -> None:
    requests = {
        "MetaQ/Fetch": b"\xff\xff\xff",
        "MetaQGroups/Join": b"\x00\x01",
        "MetaQ/Ranges": pb.RangesRequest(queues=[pb.QueueSet(topic="..", queue=[1])]).SerializeToString(),
        "MetaQGroups/View": pb.MemberRequest(session=b"nobody").SerializeToString(),
        "MetaQGroups/Store": pb.MemberRequest(
            session=bytes(16), offsets=[pb.QueueOffsets(topic="t", queue=[1], offset=[])]
        ).SerializeToString(),
        "Notify/Send": b"",
    }
    head = pb.AppendHead(producer_id=bytes(16), sequence=1, settled=1, batches=[pb.AppendBatch(topic="t", size=9)])
    appends = [
        b"",
        b"\x0a\xff",
        b"\x0a\x05ab",
        b"\x12\x01a",
        b"\x0a" + b"\xff" * 20,
        pb.AppendRequest(head=head).SerializeToString(),
        pb.AppendRequest(head=head, data=b"short").SerializeToString(),
        pb.AppendRequest(head=head, data=b"much too long").SerializeToString(),
        pb.AppendRequest(head=head, data=b"it is cut off").SerializeToString()[:-1],
        pb.AppendRequest(head=head, data=b"not at the end").SerializeToString() + b"\x18\x01",
    ]
    with RawClient(address) as client:
        calls = {client.begin(method, request): f"{method} {request!r}" for method, request in requests.items()}
        calls |= {client.begin(MetaQ.append.name, request): f"append {request!r}" for request in appends}
        for call, name in calls.items():
            answer = client.answer(call)
            assert not answer.pushed, name
            assert answer.told is not None, name
            assert answer.told.text, f"{name} is refused without a word"
            assert answer.error is not None
            assert is_documented(answer.error), f"{name}: {answer.error}"
        described = client.answer(client.begin(MetaQ.describe.name, b""))
        assert described.reply, "the connection is as good as before"
    assert log.describe().appending_bytes == 0


def test_address_without_a_metaq_server_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with RemoteLog(address, timeout_s=0.5) as log:
            error = until_told("cannot be reached", log.topics)
    assert f"MetaQ server {address} cannot be reached" in str(error)
    assert is_documented(error)
    with pytest.raises(InvalidName, match="HOST:PORT"):
        RemoteLog("http://somewhere:1")
    with pytest.raises(MisuseError, match="timeout_s=100"):
        RemoteLog("somewhere:1", timeout_s=100)


# ---- one server for a log, one for an address


def test_second_server_is_refused_with_a_readable_error(address: str, root: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is being written by process"), served(MetaQConfig(data_dir=root)):
        raise AssertionError("two servers write one log")
    with pytest.raises(MisuseError, match=f"cannot listen on {address}"):
        with served(MetaQConfig(data_dir=tmp_path / "other", listen=address)):
            raise AssertionError("two servers have one port")


def test_socket_file_can_be_an_address(tmp_path: Path) -> None:
    config = MetaQConfig(data_dir=tmp_path / "log", listen=f"unix:{tmp_path}/socket")
    with served(config) as address:
        with open_log(address) as log:
            assert log.append([batch("t", 0, 0, 1)]) == [0]
            assert held(log.fetch({T: 0})[0]) == bodies("t", 0, 0, 1)
        with pytest.raises(MisuseError, match="another program does"):
            with served(MetaQConfig(data_dir=tmp_path / "other", listen=config.listen)):
                raise AssertionError("two servers have one socket")
    assert not (tmp_path / "socket").exists()
    log_access: LogAccess = open_log(tmp_path / "log")
    assert log_access.topics() == {"t": [0]}
