"""Unreadable messages: each reader gets those before and after one, and an error that explains how to skip it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.metaq.consumers import WAIT_S, Seen
from tests.metaq.unreadable import UNREADABLE, LogOfRecords, append_frames, bodies_before_the_stop
from tests.waiting import until_async
from txmsg.administration.dead_letters import DeadLetterFilter, DeadLetterQuery
from txmsg.administration.log import LogAdministration
from txmsg.errors import InvalidMessage, UnreadableMessage
from txmsg.metaq import AsyncPullConsumer, LogQueue, read_arrow
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.export import Format, export
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.local import LocalLog
from txmsg.metaq.tables import spans_of
from txmsg.ops.cli.metaq_contents import _messages
from txmsg.wire.start import Start

COUNT = 300
BAD = 130
"""More than a chunk of a lane from the first one."""
T0 = LogQueue("t", 0)
BODIES = [b"%d" % at for at in range(COUNT)]
READABLE = [body for at, body in enumerate(BODIES) if at != BAD]
TOLD = {
    **{kind: strange.told for kind, strange in UNREADABLE.items()},
    **dict.fromkeys(["frames", "zstd"], "headers of 1 bytes cannot be read"),
    "frame times": "its time 1700000000000000000 us",
}


@pytest.fixture
def log(tmp_path: Path, kind: str) -> Iterator[LocalLog]:
    with LogOfRecords(tmp_path / "log") as log:
        if kind in UNREADABLE:
            log.fill(T0, COUNT, {BAD: kind})
        else:
            compression = Compression.ZSTD if kind == "zstd" else Compression.NONE
            append_frames(log, T0, COUNT, [BAD], compression, by_times=kind == "frame times")
        yield log


def require_told(text: str, kind: str) -> None:
    """Check that the error names topic, queue, offset, reason, and the command that skips just this message."""
    assert f"offset {BAD} of topic t queue 0 cannot be read" in text, text
    assert TOLD[kind] in text, text
    command = f"`txmsg group seek GROUP --log LOG --topic t --queue 0 --to {BAD + 1}`"
    assert command in text, text


@pytest.mark.parametrize("kind", TOLD)
async def test_consumers_get_messages_before_an_unreadable_one_and_after_a_seek_the_rest(
    log: LocalLog, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen, polled = Seen(), list[bytes]()
    handling, polling = AsyncPushConsumer(log, "g"), AsyncPullConsumer(log, "p")
    handling.subscribe("t")(seen)
    polling.subscribe("t")

    async def poll_to(count: int) -> None:
        while len(polled) < count:
            for batch in await polling.poll(WAIT_S):
                polled.extend(message.body for message in batch.messages())

    def has_told() -> bool:
        return any("group g cannot fetch" in record.getMessage() for record in caplog.records)

    async with handling, polling:
        await until_async(lambda: len(seen.messages) >= BAD and has_told())
        await poll_to(BAD)
        with pytest.raises(UnreadableMessage) as stopped:
            await poll_to(BAD + 1)
        assert [message.body for message in seen.messages] == BODIES[:BAD] == polled
        require_told(str(stopped.value), kind)
        require_told(next(text for text in caplog.messages if "group g cannot fetch" in text), kind)
        log.seek("g", {LogQueue("t", 0): BAD + 1})
        await polling.seek("t", 0, Start.offset(BAD + 1))
        await until_async(lambda: len(seen.messages) >= len(READABLE))
        await poll_to(len(READABLE))
    assert [message.body for message in seen.messages] == READABLE == polled


@pytest.mark.parametrize("kind", UNREADABLE)
def test_tables_and_exports_stop_at_an_unreadable_message_or_skip_it(log: LocalLog, kind: str, tmp_path: Path) -> None:
    before, stopped = bodies_before_the_stop(log, "t")
    assert before == BODIES[:BAD]
    require_told(str(stopped), kind)

    skipped: list[str] = []
    assert read_arrow(log, "t", on_missing=skipped.append).read_all()["body"].to_pylist() == READABLE
    [text] = skipped
    require_told(text, kind)

    for format in Format:
        to = tmp_path / f"t{format.value}"
        done = export(log, spans_of(log, "t"), to, format, on_missing=skipped.append)
        assert done.messages == len(READABLE)
    assert pq.read_table(tmp_path / "t.parquet")["body"].to_pylist() == READABLE
    with pytest.raises(UnreadableMessage):
        export(log, spans_of(log, "t"), tmp_path / "none.parquet", Format.PARQUET)
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("kind", ["frames", "zstd"])
def test_tables_have_the_other_columns_of_messages_with_unreadable_headers(log: LocalLog) -> None:
    found = read_arrow(log, "t").read_all()
    assert found["body"].to_pylist() == BODIES
    assert [at for at, headers in enumerate(found["headers"].to_pylist()) if headers is None] == [BAD]


@pytest.mark.parametrize("kind", TOLD)
def test_tail_and_searches_skip_an_unreadable_message(
    log: LocalLog, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = list(_messages(log, "t", None, Start.earliest(), follow=False))
    assert [message.body for message in found] == READABLE
    require_told(re.sub(r"\s+", " ", capsys.readouterr().err), kind)
    for message in (found[0], found[BAD], found[-1]):
        assert log.find_id("t", message.id) == message


@pytest.mark.parametrize("kind", TOLD)
def test_batch_can_be_limited_to_offsets_before_a_bound(log: LocalLog) -> None:
    [fetched] = log.fetch({T0: 100})
    readable = fetched.readable()
    assert [(batch.base_offset, batch.end_offset) for batch in readable.batches] == [(100, BAD)]
    [batch] = readable.batches
    assert len(batch) == BAD - 100
    part = batch.before(110)
    assert (part.base_offset, part.end_offset, len(part)) == (100, 110, 10)
    assert part.to_arrow()["body"].to_pylist() == [message.body for message in part.messages()] == BODIES[100:110]
    assert len(batch.before(50)) == 0
    assert pa.table({"n": batch.before(50).to_arrow()["n"]}).num_rows == 0


@pytest.mark.parametrize("us", [1_700_000_000_000_000_000, 1_700_000_000_000_000_000_000 % 2**63, -(2**62)])
@pytest.mark.parametrize("column", ["stored_at_us", "born_at_us"])
def test_timestamps_out_of_range_are_refused(us: int, column: str) -> None:
    columns = FrameColumns([b"a", b"b"], [5, 6], born_at_us=[1, 2])
    setattr(columns, column, [5, us])
    with pytest.raises(InvalidMessage, match=f"its time {us} us since 1970 is not from the year 1 to 9999"):
        encode(columns)


@pytest.mark.parametrize("kind", ["frames"])
def test_dead_letters_before_an_unreadable_one_are_listed_and_redriven(log: LocalLog) -> None:
    assert isinstance(log, LogOfRecords)
    log.join("g", ["t"]).leave({})
    dead = LogQueue("%DLQ%g", 0)
    log.fill(dead, 5, {2: "ns"})
    administration, of_group = LogAdministration(log), DeadLetterFilter(group="g")

    def listed() -> list[int | None]:
        return [letter.offset for letter in administration.list_dead_letters(DeadLetterQuery(which=of_group)).letters]

    assert listed() == [0, 1, 3, 4]
    dealt = administration.purge(administration.select(of_group))
    with pytest.raises(UnreadableMessage, match=r"--topic %DLQ%g --queue 0 --to 3`"):
        list(dealt)
    assert listed() == [3, 4]
    log.seek("g", {dead: 3})
    assert sum(administration.purge(administration.select(of_group))) == 2
