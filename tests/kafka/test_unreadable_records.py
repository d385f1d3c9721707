"""Unreadable records: those before and after one are read, and the error explains how to skip just it."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.cli_harness import json_of, said
from tests.kafka.unreadable import produce_with_unreadable
from tests.kafka_server import Kafka, create_topic
from tests.metaq.consumers import WAIT_S, Seen
from tests.metaq.unreadable import UNREADABLE, bodies_before_the_stop
from tests.waiting import until_async
from txmsg.errors import UnreadableMessage
from txmsg.metaq import AsyncPullConsumer, LogQueue, open_log, read_arrow
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer

pytestmark = pytest.mark.long

COUNT = 300
BAD = 130
"""More than a chunk of a lane from the first one, and fewer than two."""
T0 = LogQueue("t", 0)
BODIES = [b"%d" % at for at in range(COUNT)]
READABLE = [body for at, body in enumerate(BODIES) if at != BAD]


@pytest.fixture(params=UNREADABLE)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def where(kafka: Kafka, kafka_prefix: str, kind: str) -> str:
    create_topic(kafka, f"{kafka_prefix}t")
    produce_with_unreadable(kafka, f"{kafka_prefix}t", 0, COUNT, {BAD: kind})
    return f"{kafka.address}/{kafka_prefix}"


def told(text: str, kind: str) -> list[str]:
    """Return the command named by the error, which also names topic, queue and offset."""
    assert f"offset {BAD} of topic t queue 0 cannot be read" in text, text
    assert UNREADABLE[kind].told in text, text
    found = re.search(r"`txmsg (group seek GROUP --log LOG --topic t --queue 0 --to \d+)`", text)
    assert found, text
    return shlex.split(found[1])


def test_tables_tail_export_and_find_skip_an_unreadable_record_and_report_it(
    where: str, kind: str, tmp_path: Path
) -> None:
    before, stopped = bodies_before_the_stop(where, "t")
    assert before == BODIES[:BAD]
    assert stopped.next_offset == BAD + 1
    told(str(stopped), kind)

    skipped: list[str] = []
    assert read_arrow(where, "t", on_missing=skipped.append).read_all()["body"].to_pylist() == READABLE
    [text] = skipped
    told(text, kind)

    refused = said("metaq", "export", "t", "--log", where, "--into", str(tmp_path / "none.parquet"), status=1)
    told(refused.replace("\n", " "), kind)
    to = tmp_path / "t.parquet"
    done = json_of("metaq", "export", "t", "--log", where, "--into", str(to), "--skip-missing")
    assert done["messages"] == len(READABLE)
    assert pq.read_table(to)["body"].to_pylist() == READABLE

    lines = said("metaq", "tail", "t", "--log", where)
    assert [line.rpartition(" ")[2].encode() for line in lines.splitlines()] == READABLE

    with open_log(where) as log:
        last = log.fetch({T0: COUNT - 1})[0].batches[0].messages()
        id_of_last = next(iter(last)).id
        assert log.find("t", "nothing") == []
        found = log.find_id("t", id_of_last)
    assert found is not None


async def test_consumers_stop_at_an_unreadable_record_and_continue_after_the_seek_command(
    where: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    handling = AsyncPushConsumer(where, "g")
    handling.subscribe("t")(seen)
    polling = AsyncPullConsumer(where, "p")
    polling.subscribe("t")
    polled: list[bytes] = []

    async def poll_to(count: int) -> None:
        while len(polled) < count:
            for batch in await polling.poll(WAIT_S):
                polled.extend(message.body for message in batch.messages())

    async with handling, polling:
        await until_async(lambda: len(seen.messages) >= BAD and _told(caplog))
        with pytest.raises(UnreadableMessage) as stopped:
            await poll_to(BAD + 1)
        assert [message.body for message in seen.messages] == BODIES[:BAD] == polled
        await polling.commit()
        command = told(str(stopped.value), kind)
        for group in ("g", "p"):
            words = [{"GROUP": group, "LOG": where}.get(word, word) for word in command]
            await asyncio.to_thread(said, *words, "--yes")
        await until_async(lambda: len(seen.messages) >= len(READABLE))
        await until_async(lambda: polling._balance.lanes[T0].error is None)  # it has seen that its group was moved
        await poll_to(len(READABLE))
        await polling.commit()
    assert [message.body for message in seen.messages] == READABLE == polled
    assert any(UNREADABLE[kind].told in record.getMessage() for record in caplog.records)


def _told(caplog: pytest.LogCaptureFixture) -> bool:
    return any("cannot be read" in record.getMessage() for record in caplog.records)
