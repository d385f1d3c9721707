"""`read_arrow` and `txmsg metaq export` of a mirror in Kafka: the same tables as of a MetaQ log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.cli_harness import json_of
from tests.kafka.twins import STORED_AT_US, Twins
from tests.kafka_server import Kafka
from txmsg import Start
from txmsg.errors import UnknownTopic
from txmsg.message import datetime_of_us
from txmsg.metaq import TABLE_SCHEMA, LogQueue, read_arrow

pytestmark = pytest.mark.long

COUNT = 31
"""Messages of queue 0; among them are transaction markers and an aborted one."""


@pytest.fixture(scope="module")
def twins(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    made = Twins(tmp_path_factory.mktemp("tables") / "log", kafka, "tables-")
    made.create("trade", 2)
    made.append({LogQueue("trade", 0): 20, LogQueue("trade", 1): 7})
    made.append({LogQueue("trade", 0): COUNT - 20})
    return made


MINUTE_5 = datetime_of_us(STORED_AT_US) + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, COUNT + 7),
        ({"start": Start.offset(3), "until": Start.offset(25), "queues": [0]}, 22),
        ({"start": Start.at(MINUTE_5), "until": Start.at(MINUTE_5 + timedelta(minutes=4))}, 4 + 2),
        ({"start": Start.latest()}, 0),
    ],
    ids=["all", "offsets", "times", "none"],
)
def test_table_equals_that_of_a_metaq_log(twins: Twins, options: dict[str, object], count: int) -> None:
    found = read_arrow(twins.address, "trade", **options).read_all()  # type: ignore[arg-type]
    found.validate(full=True)
    assert found.schema == TABLE_SCHEMA
    assert found.to_pylist() == read_arrow(twins.directory, "trade", **options).read_all().to_pylist()  # type: ignore[arg-type]
    assert len(found) == count


def test_an_export_has_the_same_messages(twins: Twins, tmp_path: Path) -> None:
    to = str(tmp_path / "trade")
    done = json_of("metaq", "export", "trade", "--log", twins.address, "--into", to, "--partition", "queue")
    assert done["messages"] == COUNT + 7
    assert done["queues"] == [{"queue": 0, "begin": 0, "end": COUNT}, {"queue": 1, "begin": 0, "end": 7}]
    expected = read_arrow(twins.directory, "trade").read_all()
    found = pa.concat_tables([pq.read_table(path, partitioning=None) for path in sorted(map(Path, done["files"]))])
    assert found.to_pylist() == expected.drop_columns("queue").to_pylist()


def test_topic_missing_in_kafka_is_named(twins: Twins) -> None:
    with pytest.raises(UnknownTopic, match="'trades' is not in this log: its topics are trade"):
        read_arrow(twins.address, "trades")
