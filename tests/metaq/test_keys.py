"""Messages are found by key, in finished files and the open one, with, without, or with a damaged index."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.metaq.logs import fill
from txmsg.message import Message
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.fsck.check import check
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.keys import (
    BLOCK_COUNT,
    FrameKeys,
    KeyIndexer,
    KeysFile,
    index_keys,
    key_hash,
    keys_file,
    write_keys,
)
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings

SMALL = LogConfig(file_size_bytes_max=3000, topic=TopicSettings(flush=Flush.TIMED))
KEYS = ["a", "b", "ключ", "a", "x" * 512]


def batch(topic: str, queue: int, keys: list[str], compression: Compression = Compression.NONE) -> Append:
    return Append(topic, queue, encode(FrameColumns([b""] * len(keys), [1], key=keys), compression))


def found(log: Path | LogReader, topic: str, key: str, count_max: int = 100) -> list[tuple[int | None, int | None]]:
    reader = LogReader(log) if isinstance(log, Path) else log
    messages = reader.find(topic, key, count_max=count_max)
    assert all(message.key == key and message.topic == topic for message in messages)
    return [(message.queue, message.offset) for message in messages]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rounds of KEYS in two queues of one topic and one of another, over several indexed files."""
    root = tmp_path_factory.mktemp("log")
    with Log(root, SMALL) as log:
        for compression in (Compression.NONE, Compression.LZ4) * 5:
            log.append([batch("t", queue, KEYS, compression) for queue in (0, 1)])
            log.append([batch("other", 0, ["a", ""])])
            fill(log, "keyless", 0, [1])
        log.index_keys()
    assert len(list((root / "keys").iterdir())) == len(list((root / "commitlog").iterdir())) - 1 > 3
    return root


def expected(places: list[int]) -> list[tuple[int, int]]:
    return [(queue, 5 * round_ + place) for queue in (0, 1) for round_ in range(10) for place in places]


def is_complete(root: Path) -> None:
    assert found(root, "t", "a") == expected([0, 3])
    assert found(root, "t", "ключ") == expected([2])
    assert found(root, "t", "x" * 512) == expected([4])
    assert found(root, "other", "a") == [(0, 2 * each) for each in range(10)]
    assert found(root, "t", "c") == found(root, "other", "b") == found(root, "unknown", "a") == []


def test_messages_are_found_by_key(rolled: Path) -> None:
    is_complete(rolled)
    assert found(rolled, "t", "a", 3) == [(0, 0), (0, 3), (1, 0)], "those appended first"


def test_messages_are_found_without_indexes_and_the_next_writer_rebuilds_them(rolled: Path, tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(rolled, root)
    shutil.rmtree(root / "keys")
    is_complete(root)
    with Log(root) as log:
        log.index_keys()
    for path in (rolled / "keys").iterdir():
        assert (root / "keys" / path.name).read_bytes() == path.read_bytes()


def test_damaged_index_is_rebuilt(rolled: Path, tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(rolled, root)
    paths = sorted((root / "keys").iterdir())
    whole = [path.read_bytes() for path in paths]
    for bit in range(0, len(whole[0]) * 8, 61):
        for path, data in zip(paths, whole, strict=True):
            damaged = bytearray(data)
            damaged[bit // 8 % len(data)] ^= 1 << bit % 8
            path.write_bytes(damaged)
        assert found(root, "t", "a") == expected([0, 3]), f"bit {bit}"
    paths[0].write_bytes(whole[1])
    paths[1].write_bytes(whole[1][:-1])
    is_complete(root)
    with Log(root) as log:
        log.index_keys()
    assert [path.read_bytes() for path in paths[:2]] == whole[:2]


def test_open_reader_finds_keys_appended_later(tmp_path: Path) -> None:
    with Log(tmp_path, SMALL) as log:
        reader = LogReader(tmp_path)
        assert found(reader, "t", "k") == []
        for number in range(40):
            assert LogProducer(log).send(Message("t", bytes(100), key="k")).offset == number
            assert found(reader, "t", "k") == [(0, offset) for offset in range(number + 1)]


def test_growing_file_has_one_index_in_memory(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        reader = LogReader(tmp_path)
        for number in range(5):
            log.append([batch("t", 0, ["k"])])
            assert found(reader, "t", "k") == [(0, offset) for offset in range(number + 1)]
    assert reader._finder is not None
    [[index]] = reader._finder._in_memory.values()
    assert len(index.hashes) == 5


def test_truncated_deleted_or_unflushed_messages_are_not_found(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=500, retention_size_bytes=1000, checkpoint_s=3600)) as log:
        for _ in range(4):
            log.append([batch("t", 0, ["a", "b"])])
        log.truncate("t", 0, 3)
        assert (found(tmp_path, "t", "a"), found(tmp_path, "t", "b")) == ([(0, 0), (0, 2)], [(0, 1)])
        for _ in range(10):
            log.append([batch("t", 0, ["c"])])
        reader = LogReader(tmp_path)
        assert found(reader, "t", "a") != []
        assert log.delete_old()
        begin, end = reader.queue("t", 0).range()
        assert 3 < begin < end
        assert found(reader, "t", "a") == []
        assert found(reader, "t", "c") == [(0, offset) for offset in range(begin, end)]
        log.index_keys()
        firsts = CommitLogReader(tmp_path / "commitlog").files()
        assert {path.stem for path in (tmp_path / "keys").iterdir()} == {f"{first:020}" for first in firsts[:-1]}


def test_file_deleted_during_indexing_is_not_damage_and_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[int] = []

    def write_late(root: Path, log_id: int, first: int, parts: list[FrameKeys]) -> None:
        if first == 0:
            deleted.extend(log.delete_old(size_bytes_max=CommitLogReader(root / "commitlog").end_position() - 1))
        write_keys(root, log_id, first, parts)

    monkeypatch.setattr(KeyIndexer, "wake", lambda _: None)  # only when it is called here
    with Log(tmp_path, replace(SMALL, retention_size_bytes=None)) as log:
        log.index_keys()
        monkeypatch.setattr("txmsg.metaq.store.keys.write_keys", write_late)
        for _ in range(10):
            log.append([batch("t", 0, KEYS)])
        log.index_keys()
        assert deleted == [0]
        assert keys_file(tmp_path, 0).exists()
        assert check(tmp_path).report.problems == []
        log.index_keys()
        kept = sorted(path.stem for path in (tmp_path / "commitlog").iterdir())[:-1]
        assert sorted(path.stem for path in (tmp_path / "keys").iterdir()) == kept


def test_equal_hashes_can_span_several_index_blocks(tmp_path: Path) -> None:
    import numpy as np

    places = np.arange(3 * BLOCK_COUNT, dtype=np.uint32)
    hashes = np.full(len(places), 7, np.uint64)
    hashes[:5], hashes[-5:] = 3, 2**64 - 1
    (tmp_path / "keys").mkdir()
    write_keys(tmp_path, 1, 0, [FrameKeys(hashes[::2], places[::2], 5), FrameKeys(hashes[1::2], places[1::2], 99)])
    index = KeysFile(tmp_path, 1, 0, 99)
    assert index.places(3) == [0, 2, 4, 1, 3], "in the order given"
    assert sorted(index.places(7)) == list(range(5, len(places) - 5))
    assert sorted(index.places(2**64 - 1)) == list(range(len(places) - 5, len(places)))
    assert index.places(0) == index.places(8) == []


def test_hashing_many_keys_equals_hashing_each(tmp_path: Path) -> None:
    keys = [f"{place}" * (place % 40) for place in range(500)]
    with Log(tmp_path) as log:
        log.append([batch("t", 0, keys[:300]), batch("u", 0, keys[300:])])
        [index] = index_keys(log.reader.commit_log, 0, 0, log.reader.commit_log.end_position())
    alone = [key_hash("t" if place < 300 else "u", key) for place, key in enumerate(keys) if key]
    assert index.hashes.tolist() == alone
    assert len(set(alone)) == len(set(keys)) - 1
    assert keys_file(tmp_path, 0).exists() is False, "the open file has none"
