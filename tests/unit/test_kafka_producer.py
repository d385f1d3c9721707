"""A producer on a log that takes columns, as Kafka does: nothing is encoded for it, and no settings are read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

import pytest

from txmsg.errors import MisuseError
from txmsg.message import Message
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.interface import ColumnsFor, TakesColumns
from txmsg.metaq.kafka.kafka_log import KafkaLog
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.producer import LogProducer, Place
from txmsg.metaq.store.log import Append


class RecordingLog:
    def __init__(self) -> None:
        self.batches: list[ColumnsFor] = []
        self.acks: list[Acks | None] = []

    def append_columns(self, batches: Sequence[ColumnsFor], acks: Acks | None = None) -> list[int]:
        self.batches += batches
        self.acks.append(acks)
        return [7] * len(batches)

    def append(self, _: Sequence[Append]) -> NoReturn:
        pytest.fail("a frame was encoded, which is decoded again")

    def settings_of(self, _: str) -> NoReturn:
        pytest.fail("settings were asked for, which is a round trip for each call")


@pytest.mark.parametrize("acks", [None, Acks.COPIES])
def test_messages_are_appended_as_columns_at_the_offsets_of_the_log(acks: Acks | None) -> None:
    log = RecordingLog()
    messages = [Message("t", b"a", key="k"), Message("u", b"b"), Message("t", b"c")]
    places = LogProducer(log, queues=1, acks=acks).send_many(messages)
    assert places == [Place("t", 0, 7), Place("u", 0, 7), Place("t", 0, 8)]
    of_t, of_u = log.batches
    assert (of_t.topic, of_t.columns.body, of_t.columns.key) == ("t", [b"a", b"c"], ["k", ""])
    assert of_u.columns.body == [b"b"]
    assert log.acks == [acks]


def test_kafka_takes_columns_and_refuses_delayed_messages() -> None:
    with KafkaLog(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1.0) as log:
        assert isinstance(log, TakesColumns)
        with pytest.raises(MisuseError, match="is delayed, which Kafka does not support"):
            LogProducer(log).send(Message("t", b"x", deliver_after=timedelta(minutes=1)))


def test_kafka_refuses_durability_on_disk() -> None:
    """This holds for columns, and for frames, as they come from a spool."""
    with KafkaLog(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1.0) as log:
        with pytest.raises(MisuseError, match=r"acks=disk .* syncs to disk.*ask for Acks.COPIES"):
            LogProducer(log, acks=Acks.DISK).send(Message("t", b"x"))
        with pytest.raises(MisuseError, match=r"acks=disk"):
            log.append([Append("t", 0, encode(FrameColumns([b"x"], [5000])))], Acks.DISK)
