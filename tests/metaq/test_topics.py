"""Topic settings are stored in the log and applied; messages are appended as applications build them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from txmsg.errors import CorruptLog, InvalidMessage, InvalidName, MisuseError
from txmsg.message import Message
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer, Place
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.wire.tags import parse_tags

PACKED = TopicSettings(flush=Flush.TIMED, compression=Compression.ZSTD, retention_s=3600)


def test_topic_settings_are_stored_in_the_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.set_topic("packed", PACKED)
        assert (log.settings_of("packed"), log.settings_of("other")) == (PACKED, TopicSettings())
    with Log(tmp_path, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        assert log.settings_of("packed") == PACKED
        assert log.settings_of("other").flush is Flush.TIMED, "the configuration says what holds for all others"


def test_invalid_settings_are_refused_and_damaged_ones_reported(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="flush='timed'"):
        TopicSettings(flush="timed")  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="retention_s=0"):
        TopicSettings(retention_s=0)
    with Log(tmp_path) as log, pytest.raises(InvalidName):
        log.set_topic("../x", PACKED)
    for damaged in ("{", '{"t": {"flush": "never", "compression": "none", "retention_s": null}}', '["t"]', '{"t": {}}'):
        (tmp_path / "topics.json").write_text(damaged)
        with pytest.raises(CorruptLog, match=r"topics\.json"):
            Log(tmp_path)


def test_messages_round_trip_and_are_compressed_by_topic_setting(tmp_path: Path) -> None:
    messages = [
        Message("packed", b"a" * 200, key="k1", tag="created", headers={"trace": "1"}, ordering_key="o"),
        Message("plain", b"b", key="k2"),
        Message("packed", b"c" * 200),
    ]
    with Log(tmp_path) as log:
        log.set_topic("packed", PACKED)
        producer = LogProducer(log)
        places = producer.send_many(messages, queue=3)
        assert places == [Place("packed", 3, 0), Place("plain", 3, 0), Place("packed", 3, 1)]
        assert producer.send(messages[0], queue=3) == Place("packed", 3, 2)
        packed = log.reader.queue("packed", 3).fetch(0)
        [plain] = log.reader.queue("plain", 3).fetch(0)
    assert [each.header.compression for each in (*packed, plain)] == [
        Compression.ZSTD,
        Compression.ZSTD,
        Compression.NONE,
    ]
    found = [*packed[0].messages(), *plain.messages()]
    sent = [messages[0], messages[2], messages[1]]
    assert [(m.topic, m.body, m.key, m.tag, dict(m.headers), m.ordering_key) for m in found] == [
        (m.topic, m.body, m.key, m.tag, dict(m.headers), m.ordering_key) for m in sent
    ]
    assert len({each.id for each in found}) == 3, "each has an id of its own"
    assert found[0].stored_at_us == found[0].born_at_us > 0


def test_one_invalid_message_refuses_the_whole_call(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        with pytest.raises(InvalidMessage, match=r"due in 10\.0 days"):
            LogProducer(log).send_many([Message("u", b""), Message("t", b"", deliver_after=timedelta(days=10))])
        assert log.reader.topics() == {}
        assert LogProducer(log).send_many([]) == []


def test_many_messages_are_split_into_frames_of_bounded_size(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        places = LogProducer(log).send_many([Message("large", bytes(5 * 1024 * 1024))] * 7)
        assert places == [Place("large", 0, offset) for offset in range(7)]
        assert [len(each) for each in log.reader.queue("large", 0).fetch(0, size_bytes_max=2**30)] == [3, 3, 1]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_messages_are_filtered_by_tag_when_reading(tmp_path: Path, compression: Compression) -> None:
    tags = ["created", None, "paid", "created", "shipped"]
    with Log(tmp_path, LogConfig(topic=TopicSettings(compression=compression))) as log:
        producer = LogProducer(log, queues=1)
        producer.send_many([Message("t", b"%d" % place, tag=tag) for place, tag in enumerate(tags)])
        producer.send(Message("t", b"no tags"))
    tagged, untagged = LogReader(tmp_path).queue("t", 0).fetch(0)
    wanted = parse_tags("created || shipped")
    assert tagged.to_arrow(wanted)["offset"].to_pylist() == [0, 3, 4]
    assert [each.tag for each in tagged.messages(parse_tags("paid"))] == ["paid"]
    assert len(list(tagged.messages(parse_tags("*")))) == 5
    assert len(untagged.to_arrow(wanted)) == 0
    assert untagged.to_arrow(wanted).schema == untagged.to_arrow().schema
    assert untagged.end_offset == 6, "where to read on is said, whatever the filter leaves"


def test_producer_keeps_keys_in_order_and_spreads_other_messages(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as log:
        producer = LogProducer(log, queues=3)
        keyed = [Message("t", b"%d" % n, ordering_key=f"k{n % 5}") for n in range(20)]
        queue_of: dict[str | None, set[int]] = {}
        for start in (0, 10):
            for message, place in zip(keyed[start:], producer.send_many(keyed[start : start + 10]), strict=False):
                queue_of.setdefault(message.ordering_key, set()).add(place.queue)
        assert all(len(queues) == 1 for queues in queue_of.values()), "the messages of a key are in one queue"
        assert len(set().union(*queue_of.values())) > 1
        assert [producer.send(Message("u", b"")).queue for _ in range(6)] in ([2, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2])
        found = [m for queue in range(3) for b in LogReader(tmp_path).queue("t", queue).fetch(0) for m in b.messages()]
        for key in queue_of:
            bodies = [int(each.body) for each in found if each.ordering_key == key]
            assert bodies == sorted(bodies)
    with pytest.raises(MisuseError, match="queues=0 of a LogProducer"):
        LogProducer(log, queues=0)
