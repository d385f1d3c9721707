"""What a topic asks for is kept with the log, and done; messages are appended as applications have them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from txmsg.errors import CorruptLog, InvalidMessage, InvalidName, MisuseError
from txmsg.message import Message
from txmsg.metaq.frame import Compression
from txmsg.metaq.log import Flush, Log, LogConfig, TopicSettings
from txmsg.metaq.reader import LogReader
from txmsg.wire.tags import parse_tags

PACKED = TopicSettings(flush=Flush.TIMED, compression=Compression.ZSTD, retention_s=3600)


def test_settings_are_kept_with_the_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.set_topic("packed", PACKED)
        assert (log.settings_of("packed"), log.settings_of("other")) == (PACKED, TopicSettings())
    with Log(tmp_path, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        assert log.settings_of("packed") == PACKED
        assert log.settings_of("other").flush is Flush.TIMED, "the configuration says what holds for all others"


def test_wrong_settings_are_refused_and_damaged_ones_are_said(tmp_path: Path) -> None:
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


def test_messages_are_appended_and_read_as_they_were_and_compressed_as_their_topic_asks(tmp_path: Path) -> None:
    messages = [
        Message("packed", b"a" * 200, key="k1", tag="created", headers={"trace": "1"}, ordering_key="o"),
        Message("plain", b"b", key="k2"),
        Message("packed", b"c" * 200),
    ]
    with Log(tmp_path) as log:
        log.set_topic("packed", PACKED)
        assert log.append_messages(messages, queue=3) == {"packed": 0, "plain": 0}
        assert log.append_messages(messages[:1], queue=3) == {"packed": 2}
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


def test_messages_of_one_call_are_all_refused_when_one_is(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        with pytest.raises(InvalidMessage, match="topic 't' is delayed"):
            log.append_messages([Message("t", b""), Message("t", b"", deliver_after=timedelta(seconds=1))])
        assert log.reader.topics() == {}
        assert log.append_messages([]) == {}


def test_many_messages_become_frames_of_bounded_size(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        assert log.append_messages([Message("large", bytes(5 * 1024 * 1024))] * 7) == {"large": 0}
        assert [len(each) for each in log.reader.queue("large", 0).fetch(0, size_bytes_max=2**30)] == [3, 3, 1]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_tags_are_filtered_when_reading(tmp_path: Path, compression: Compression) -> None:
    tags = ["created", None, "paid", "created", "shipped"]
    with Log(tmp_path, LogConfig(topic=TopicSettings(compression=compression))) as log:
        log.append_messages([Message("t", b"%d" % place, tag=tag) for place, tag in enumerate(tags)])
        log.append_messages([Message("t", b"no tags")])
    tagged, untagged = LogReader(tmp_path).queue("t", 0).fetch(0)
    wanted = parse_tags("created || shipped")
    assert tagged.to_arrow(wanted)["offset"].to_pylist() == [0, 3, 4]
    assert [each.tag for each in tagged.messages(parse_tags("paid"))] == ["paid"]
    assert len(list(tagged.messages(parse_tags("*")))) == 5
    assert len(untagged.to_arrow(wanted)) == 0
    assert untagged.to_arrow(wanted).schema == untagged.to_arrow().schema
    assert untagged.end_offset == 6, "where to read on is said, whatever the filter leaves"
