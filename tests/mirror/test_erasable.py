"""A mirrored log of an erasable topic holds ciphertext, equal to the table; readers get the remaining keys."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import said
from tests.mirror.tailer_process import TailerProcess
from tests.spark.reads import arrow, batch_of, source
from tests.waiting import until
from txmsg.client import BodyKeys, Producer
from txmsg.client.app import Txmsg
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message, ReceivedMessage
from txmsg.message.erasable import ERASED_HEADER
from txmsg.metaq import open_log, to_arrow
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.interface import LogQueue

SECRET = b'{"name": "ann"}'
WAIT_S = 60.0


def read(root: Path, topic: str) -> list[LogBatch]:
    with open_log(root) as log:
        return [batch for found in log.fetch({LogQueue(topic, 0): 0}) for batch in found.batches]


def count(root: Path, topic: str) -> int:
    return sum(map(len, read(root, topic))) if (root / "queues").exists() else 0


def test_log_stays_equal_to_its_table_and_unerased_bodies_can_be_decrypted(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    root, where = tmp_path / "log", ("--broker", broker.address)
    said("topic", "create", "t", "--queues", "1", "--erasable", "90d", *where)
    said("topic", "create", "u", "--queues", "1", *where)
    with TailerProcess(notify_url, root, said=tmp_path / "said") as tailer:
        tailer.start()
        with Producer(broker.address, group="clinic") as producer:
            kept = producer.send(Message("t", SECRET, headers={"h": "1"}))
            gone = producer.send(Message("t", SECRET))
            until(lambda: count(root, "t") == 2, why="the topic is not mirrored")
            files = [path for path in root.rglob("*") if path.is_file()]
            assert not [path for path in files if SECRET in path.read_bytes()]
            said("message", "erase", "--topic", "t", gone, "--yes", *where)
            producer.send(Message("u", b"clear"))
            until(lambda: count(root, "u") == 1, why="the other topic is not mirrored")
        said("tailer", "verify", "--storage", notify_url, "--metaq", str(root))
        tailer.stop()
    said("tailer", "drop", "--storage", notify_url, "--yes")
    keys = BodyKeys(broker.address)

    stored = read(root, "t")
    assert [message.id for batch in stored for message in batch.messages()] == [kept, gone]
    table = keys.decrypt_arrow("t", to_arrow(stored))
    assert table.schema == to_arrow(stored).schema
    assert table["body"].to_pylist() == [SECRET, b""]
    in_clear = to_arrow(read(root, "u"))
    assert keys.decrypt_arrow("u", in_clear) is in_clear

    got: queue.Queue[ReceivedMessage] = queue.Queue()
    app = Txmsg(log=str(root), group="ward", encryption=keys)
    app.subscribe("t", source="log")(got.put)
    with app:
        handled = [got.get(timeout=WAIT_S) for _ in range(2)]
    assert [(message.body, message.headers) for message in handled] == [
        (SECRET, {"h": "1"}),
        (b"", {ERASED_HEADER: "1"}),
    ]

    options = {"bodyKeys": broker.address, "includeHeaders": True}
    [rows] = [part.to_pylist() for part in arrow(batch_of(root, "t", **options))]
    assert [(row["value"], dict(row["headers"])) for row in rows] == [(SECRET, {"h": "1"}), (b"", {ERASED_HEADER: "1"})]
    assert [part["value"].to_pylist() for part in arrow(batch_of(root, "u", **options))] == [[b"clear"]]
    assert SECRET not in [row["value"] for part in arrow(batch_of(root, "t")) for row in part.to_pylist()]
    broker.stop()
    bare = StructType().add("offset", LongType())
    assert arrow(source(root, "t", bodyKeys=broker.address).reader(bare))[0]["offset"].to_pylist() == [0, 1]
    with pytest.raises(BrokerUnavailable):
        arrow(batch_of(root, "t", **options))
