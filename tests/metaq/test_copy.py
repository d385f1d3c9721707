"""A copy of a log equals its leader byte for byte, after any fault of either; it accepts nothing else."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.metaq.copies import end_of, frames_of, until_copied
from tests.metaq.logs import batch, bodies, read_all, read_around
from tests.metaq.servers import log_at, served
from tests.metrics.scraping import scrape
from tests.ports import own_port
from tests.waiting import until, until_told
from txmsg.administration.log_contents import log_state
from txmsg.errors import BrokerUnavailable, CopyDiverged, MisuseError, NotLeader, OutcomeUnknown, StorageError
from txmsg.message import Message
from txmsg.metaq.acks import Acks
from txmsg.metaq.copy.promotion import promote
from txmsg.metaq.group.files import begins_in
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server import serve
from txmsg.metaq.server.server_config import CopiesConfig, MetaQConfig
from txmsg.metaq.store.ahead import AHEAD_MAX, queues_in_doubt
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.role import copy_of, fence_of, write_copy
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.settings.live import GivenSettings
from txmsg.wire.failures import unanswered
from txmsg.wire.start import Start

T = LogQueue("t", 0)


def leading(root: Path, **config: object) -> MetaQConfig:
    return MetaQConfig(data_dir=root / "leader", listen="127.0.0.1:0", **config)  # type: ignore[arg-type]


def following(root: Path, leader: str, **config: object) -> MetaQConfig:
    return MetaQConfig(data_dir=root / "copy", listen=f"127.0.0.1:{own_port()}", follow=leader, **config)  # type: ignore[arg-type]


@contextmanager
def pair(root: Path, **config: object) -> Iterator[tuple[RemoteLog, RemoteLog]]:
    """A leader, and a copy that follows it."""
    with served(leading(root, **config)) as address, served(following(root, address)) as copy_address:
        with RemoteLog(address, timeout_s=20) as leader, RemoteLog(copy_address, timeout_s=20) as copy:
            yield leader, copy


def test_appended_messages_reach_the_copy_and_can_be_read_there(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, copy):
        leader.append([batch("t", 0, 0, 3), batch("u", 5, 0, 2)])
        [fetched] = copy.fetch({T: 0}, wait_s=30)
        assert [message.body for each in fetched.batches for message in each.messages()] == bodies("t", 0, 0, 3)
        leader.append([batch("t", 0, 3, 1)])
        assert copy.fetch({T: 3}, wait_s=30)[0].batches[0].base_offset == 3
        assert copy.ranges([T, LogQueue("u", 5)]) == {T: QueueRange(0, 4), LogQueue("u", 5): QueueRange(0, 2)}
        assert copy.identity() == leader.identity()
    assert frames_of(tmp_path / "copy") == frames_of(tmp_path / "leader")
    assert read_all(LogReader(tmp_path / "copy").queue("t", 0)) == bodies("t", 0, 0, 4)


def test_existing_log_is_copied_with_truncations_files_and_large_frames(tmp_path: Path) -> None:
    with Log(tmp_path / "leader", LogConfig(file_size_bytes_max=10_000)) as log:
        for offset in range(0, 4000, 50):
            log.append([batch("t", 0, offset, 50)])
        log.truncate("t", 0, 3975)
        log.append([batch("t", 0, 3975, 5)])
        LogProducer(log, queues=1).send(Message("large", b"x" * 9_000_000))
    with pair(tmp_path):
        until_copied(tmp_path / "leader", tmp_path / "copy")
    assert len(frames_of(tmp_path / "copy")) > 5
    assert read_all(LogReader(tmp_path / "copy").queue("t", 0)) == bodies("t", 0, 0, 3980)


def test_copy_refuses_changes(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, copy):
        leader.append([batch("t", 0, 0, 1)])
        assert copy.fetch({T: 0}, wait_s=30)
        with pytest.raises(NotLeader, match="is a copy of the log at"):
            copy.append([batch("t", 0, 1, 1)])
        with pytest.raises(NotLeader, match="txmsg metaq promote"):
            copy.join("g", ["t"])
        with pytest.raises(NotLeader):
            copy.set_topic("t", TopicSettings(flush=Flush.TIMED))
    with pytest.raises(NotLeader):
        Log(tmp_path / "copy")
    with LocalLog(tmp_path / "copy") as reading, pytest.raises(NotLeader):
        reading.join("g", ["t"])


def test_options_groups_retries_and_dead_letters_are_copied(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, copy):
        leader.append([batch("t", 0, 0, 9)])
        leader.set_topic("t", TopicSettings(flush=Flush.TIMED, retention_s=77))
        member = leader.join("g", ["t"], start=Start.latest())
        taken = member.take_queues([T])
        assert taken == {T: 9}
        member.leave({T: 5})
        set_of_group = leader.alter_group("g", stopped=True, rate_per_s=2.5)
        leader.append([batch("%RETRY%g", 2, 0, 4)])
        leader.append([batch("%DLQ%g", 0, 0, 1)])
        until(lambda: copy.settings_of("t").retention_s == 77)
        until(lambda: "g" in copy.groups() and copy.ranges([LogQueue("%DLQ%g", 0)])[LogQueue("%DLQ%g", 0)].end == 1)
        # Offsets come after the retries and dead letters that were there before them.
        until(lambda: [state.offset for state in copy.group("g").queues if state.queue == T] == [5])
        assert begins_in(tmp_path / "copy" / "groups" / "g") == {"t": {0: 9}}
        assert copy.group("g").settings == set_of_group
        with pytest.raises(NotLeader):
            copy.alter_group("g", stopped=False)
        assert copy.ranges([LogQueue("%RETRY%g", 2)])[LogQueue("%RETRY%g", 2)] == QueueRange(0, 4)
        leader.append([batch("%RETRY%g", 2, 4, 2)])
        until(lambda: copy.ranges([LogQueue("%RETRY%g", 2)])[LogQueue("%RETRY%g", 2)].end == 6)
        leader.delete_group("g")
        until(lambda: not copy.groups())


def test_restarted_copy_continues_and_refetches_a_torn_end(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, _):
        leader.append([batch("t", 0, 0, 100)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
    identity = copy_of(tmp_path / "copy")
    [path] = (tmp_path / "copy" / "commitlog").iterdir()
    torn = path.stat().st_size - 100
    (tmp_path / "copy" / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "copy" / "queues")  # cells follow the disk
    with path.open("r+b") as file:
        file.truncate(torn)
    with pair(tmp_path) as (leader, _):
        leader.append([batch("t", 0, 100, 1)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
    assert replace(copy_of(tmp_path / "copy"), leader="") == replace(identity, leader="")  # type: ignore[type-var]
    assert read_all(LogReader(tmp_path / "copy").queue("t", 0)) == bodies("t", 0, 0, 101)


def test_copy_deletes_files_that_its_leader_deleted(tmp_path: Path) -> None:
    with Log(tmp_path / "leader", LogConfig(file_size_bytes_max=1000)) as log:
        log.append([batch("old", 3, 0, 7)])
        for offset in range(0, 100, 10):
            log.append([batch("t", 0, offset, 10)])
    with pair(tmp_path) as (leader, copy):
        until_copied(tmp_path / "leader", tmp_path / "copy")
    with Log(tmp_path / "leader", LogConfig(file_size_bytes_max=1000)) as log:
        log.delete_old(size_bytes_max=2000)
        log.append([batch("t", 0, 100, 1)])
    with pair(tmp_path) as (leader, copy):
        until(lambda: copy.ranges([T]) == leader.ranges([T]))
        until_copied(tmp_path / "leader", tmp_path / "copy")
        assert copy.ranges([LogQueue("old", 3)])[LogQueue("old", 3)] == QueueRange(7, 7)


def test_copy_that_was_down_for_too_long_restarts_at_the_first_offset_of_its_leader(tmp_path: Path) -> None:
    config = LogConfig(file_size_bytes_max=1000)
    with Log(tmp_path / "leader", config) as log:
        log.append([batch("old", 3, 0, 7)])
    with pair(tmp_path):
        until_copied(tmp_path / "leader", tmp_path / "copy")
    with Log(tmp_path / "leader", config) as log:
        for offset in range(0, 100, 10):
            log.append([batch("t", 0, offset, 10)])
        log.delete_old(size_bytes_max=2000)
        assert log.reader.commit_log.begin_position() > end_of(tmp_path / "copy")
    with pair(tmp_path) as (leader, copy):
        until_copied(tmp_path / "leader", tmp_path / "copy")
        leader.append([batch("t", 0, 100, 1), batch("old", 3, 7, 1)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
        until(lambda: copy.ranges([T]) == leader.ranges([T]))
        assert copy.ranges([LogQueue("old", 3)])[LogQueue("old", 3)] == QueueRange(7, 8)


def test_a_leader_lists_its_copies_and_a_copy_names_its_leader(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, copy):
        leader.append([batch("t", 0, 0, 3)])
        until(lambda: [each.behind_bytes for each in log_state(leader).copies or ()] == [0])
        [told] = log_state(leader).copies or ()
        assert told.name.endswith(str(tmp_path / "copy"))
        assert log_state(copy).follows == leader.address
    with LocalLog(tmp_path / "copy") as directory:
        assert log_state(directory).follows == leader.address


def test_metrics_show_the_lag_of_copies(tmp_path: Path) -> None:
    port = f"127.0.0.1:{own_port()}"
    with served(requiring(tmp_path, timeout_s=0.1)) as address, RemoteLog(address, timeout_s=20) as leader:
        with served(following(tmp_path, address, http_listen=port)):
            leader.append([batch("t", 0, 0, 3)])
            found = scrape(port)
            assert found.value("txmsg_log_follow_lag_bytes") == 0
            assert 0 <= found.value("txmsg_log_follow_silent_seconds") < 60
            assert found.value("txmsg_log_copies") == 0
    port = f"127.0.0.1:{own_port()}"
    with served(replace(requiring(tmp_path), http_listen=port)):
        found = scrape(port)
        assert found.value("txmsg_log_copies_missing") == 1
        assert found.value("txmsg_log_follow_silent_seconds") == 0


# ---- acks levels


def requiring(root: Path, **copies: object) -> MetaQConfig:
    return leading(root, copies=CopiesConfig(required=1, **copies))  # type: ignore[arg-type]


def test_appends_with_acks_copies_are_refused_without_a_copy_and_else_on_its_disk(tmp_path: Path) -> None:
    with served(requiring(tmp_path)) as address, log_at(address) as leader:
        with RemoteLog(address, timeout_s=0.5) as impatient:
            why = "0 of 1 copies of the log are in touch: nothing was appended"
            told = until_told(why, lambda: impatient.append([batch("t", 0, 0, 1)]))
        assert isinstance(told, BrokerUnavailable)
        assert leader.ranges([T])[T] == QueueRange(0, 0)
        assert leader.append([batch("t", 0, 0, 1)], Acks.DISK) == [0]
        with served(following(tmp_path, address)), log_at(address) as log:
            for offset in range(1, 20):
                log.append([batch("t", 0, offset, 1)])
                assert LogReader(tmp_path / "copy").queue("t", 0).end_offset() >= offset, (
                    "acknowledged before it was copied"
                )


def test_append_not_confirmed_by_a_copy_is_unknown_and_its_repeat_appends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmsg.metaq.copy.copies.AWAY_S", 600.0)  # on any machine: it is not disconnected yet
    with served(requiring(tmp_path, timeout_s=0.2)) as address:
        with served(following(tmp_path, address)), log_at(address) as log:
            log.append([batch("t", 0, 0, 1)])
        calls = 0
        with RemoteLog(address, timeout_s=3.0) as impatient, RemoteLog(address, timeout_s=60) as log:

            def append() -> None:
                nonlocal calls
                calls += 1
                impatient.append([batch("t", 0, 1, 1)._replace(base_offset=None)])

            told = until_told("not on that of 1 copies", append)
            assert isinstance(told, OutcomeUnknown)
            # Each call repeats its append several times. On a slow machine the first may not have reached the server.
            assert 2 <= log.ranges([T])[T].end <= 1 + calls


def test_last_error_of_the_server_is_raised_although_the_last_attempt_timed_out() -> None:
    tries: list[float] = []

    def attempt(timeout_s: float, is_repeat: bool) -> None:
        tries.append(timeout_s)
        raise OutcomeUnknown("not on copies") if len(tries) == 1 else unanswered("MetaQ server", "no answer in time")

    with closing(RemoteServer("unix:/nowhere")) as server, pytest.raises(OutcomeUnknown, match="not on copies"):
        server.ask_until_answered(attempt, timeout_s=0.2, changes=True)
    assert len(tries) > 1


def test_leader_accepts_appends_without_copies_unless_the_producer_requires_them(tmp_path: Path) -> None:
    with served(requiring(tmp_path, missing="go-on")) as address, log_at(address) as leader:
        assert leader.append([batch("t", 0, 0, 1)]) == [0]
        with RemoteLog(address, timeout_s=0.5) as impatient:
            told = until_told("0 of 1 copies", lambda: impatient.append([batch("t", 0, 1, 1)], Acks.COPIES))
        assert isinstance(told, BrokerUnavailable)


def test_acks_copies_without_required_copies_is_refused(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, log_at(address) as leader:
        with pytest.raises(MisuseError, match="--copies-required"):
            leader.append([batch("t", 0, 0, 1)], Acks.COPIES)
        assert leader.ranges([T])[T].end == 0
    with (
        open_log(tmp_path / "leader", append=True) as log,
        pytest.raises(MisuseError, match="only a server has copies"),
    ):
        log.append([batch("t", 0, 0, 1)], Acks.COPIES)


@pytest.mark.parametrize("flush", Flush)
@pytest.mark.parametrize("acks", [Acks.NONE, Acks.MEMORY, Acks.DISK])
def test_each_acks_level_appends_in_order_among_the_others(tmp_path: Path, acks: Acks, flush: Flush) -> None:
    with served(leading(tmp_path)) as address, log_at(address) as log:
        log.set_topic("t", TopicSettings(flush=flush))
        producer, other = LogProducer(log, queues=1, acks=acks), LogProducer(log, queues=1)
        for turn in range(10):
            place = producer.send(Message("t", f"{turn}".encode()))
            assert place.offset == (-1 if acks is Acks.NONE else 2 * turn)
            if acks is Acks.NONE:
                until(lambda turn=turn: log.ranges([T])[T].end == 2 * turn + 1)  # type: ignore[misc]
            assert other.send(Message("t", b"other")).offset == 2 * turn + 1
        until(lambda: log.ranges([T])[T].end == 20)
        found = [message.body for each in log.fetch({T: 0}) for part in each.batches for message in part.messages()]
        assert found == [text for turn in range(10) for text in (f"{turn}".encode(), b"other")]


def test_acks_level_determines_if_a_send_waits_for_the_disk(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        log.append([batch("t", 0, 0, 1)], Flush.TIMED)
        assert log.synced == 0
        assert log.reader.queue("t", 0).end_offset() == 0, "seen before it was on disk"
        assert log.next_offset("t", 0) == 1
        log.set_topic("u", TopicSettings(flush=Flush.TIMED))
        log.append([batch("u", 0, 0, 1)])
        end = log.synced
        log.append([batch("u", 0, 1, 1)], Flush.SYNC)
        assert log.synced > end
        assert log.reader.queue("t", 0).end_offset() == 1


# ---- promotion


def test_promoted_copy_has_all_messages_and_its_former_leader_refuses_appends(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, log_at(address) as leader:
        with served(following(tmp_path, address)):
            leader.append([batch("t", 0, 0, 5)])
            until_copied(tmp_path / "leader", tmp_path / "copy")
        leader.append([batch("t", 0, 5, 5)])  # without a copier
        promoted = promote(tmp_path / "copy")
        assert (promoted.generation, promoted.is_complete) == (2, True)
        with pytest.raises(NotLeader, match="goes on as generation 2"):
            leader.append([batch("t", 0, 10, 1)])
    assert frames_of(tmp_path / "copy") == frames_of(tmp_path / "leader")
    with served(leading(tmp_path)) as address, log_at(address) as leader, pytest.raises(NotLeader):
        leader.append([batch("t", 0, 10, 1)])  # also after a restart
    with open_log(tmp_path / "copy", append=True) as log:
        assert log.identity().generation == 2
        assert log.append([batch("t", 0, 10, 1)]) == [10]
        assert log.fetch({T: 9})[0].batches[-1].end_offset == 11


def test_former_leader_without_own_messages_can_follow(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, served(following(tmp_path, address)), log_at(address) as leader:
        leader.append([batch("t", 0, 0, 5)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
    with served(leading(tmp_path)):
        with pytest.raises(BrokerUnavailable, match="--leader-is-lost"):
            promote(tmp_path / "copy")  # its leader has another port by now
    assert promote(tmp_path / "copy", leader_is_lost=True).generation == 2
    (tmp_path / "copy").rename(tmp_path / "new")
    (tmp_path / "leader").rename(tmp_path / "copy")
    (tmp_path / "new").rename(tmp_path / "leader")
    with pair(tmp_path) as (leader, copy):
        assert leader.identity().generation == 2
        leader.append([batch("t", 0, leader.ranges([T])[T].end, 1)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
        assert copy.identity().generation == 2
    assert fence_of(tmp_path / "copy") is None


def test_former_leader_with_more_messages_reports_divergence_and_stays_unchanged(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, served(following(tmp_path, address)), log_at(address) as leader:
        leader.append([batch("t", 0, 0, 5)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
    promote(tmp_path / "copy", leader_is_lost=True)
    with Log(tmp_path / "leader") as log:
        log.append([batch("t", 0, 5, 1)])
    with open_log(tmp_path / "copy", append=True) as log:
        log.append([batch("t", 0, log.ranges([T])[T].end, 20)])
    before = frames_of(tmp_path / "leader")
    with served(replace(leading(tmp_path), data_dir=tmp_path / "copy")) as address:
        with pytest.raises(CopyDiverged, match=r"has another frame at position \d+.*`mv .*/leader .*/leader.diverged`"):
            asyncio.run(
                serve(GivenSettings(replace(leading(tmp_path), follow=address)), lambda _: None, asyncio.Event())
            )
    assert frames_of(tmp_path / "leader") == before


def test_offsets_that_a_lost_leader_may_have_assigned_are_skipped(tmp_path: Path) -> None:
    with pair(tmp_path) as (leader, _):
        leader.append([batch("t", 0, 0, 5)])
        mirrored = batch("m", 0, 0, 5)._replace(is_mirrored=True)
        leader.append([mirrored])
        until_copied(tmp_path / "leader", tmp_path / "copy")
        until((tmp_path / "copy" / "ahead").exists)
    promote(tmp_path / "copy", leader_is_lost=True)
    with open_log(tmp_path / "copy", append=True) as log:
        ranges = log.ranges([T, LogQueue("m", 0)])
        assert ranges[T].end > 1_000_000
        assert ranges[LogQueue("m", 0)].end == 5


@pytest.mark.parametrize("leader_is_lost", [False, True])
def test_waiting_delayed_messages_are_delivered_once_after_a_promotion(tmp_path: Path, *, leader_is_lost: bool) -> None:
    def come(name: str) -> list[bytes]:
        return list(read_around(LogReader(tmp_path / name).queue("t", 0)).values())

    with served(leading(tmp_path)) as address, log_at(address) as leader:
        with served(following(tmp_path, address)):
            producer = LogProducer(leader, queues=1)
            producer.send(Message("t", b"before", deliver_after=timedelta(milliseconds=1)))
            until(lambda: come("leader") == [b"before"])
            producer.send_many([Message("t", body, deliver_after=timedelta(hours=1)) for body in (b"a", b"b")])
            until_copied(tmp_path / "leader", tmp_path / "copy")
            until(lambda: ("t", 0) in queues_in_doubt(tmp_path / "copy"))
        if not leader_is_lost:
            promote(tmp_path / "copy")
    if leader_is_lost:
        promote(tmp_path / "copy", leader_is_lost=True)
    with Log(tmp_path / "copy") as log:
        LogProducer(log, queues=1).send(Message("t", b"later", deliver_after=timedelta(milliseconds=1)))
        until(lambda: come("copy") == [b"before", b"later"])
        offsets = list(read_around(LogReader(tmp_path / "copy").queue("t", 0)))
        assert offsets == [0, 1 + AHEAD_MAX * leader_is_lost], "its leader may have moved others meanwhile"
    for _ in range(2):
        with Log(tmp_path / "copy", clock=lambda: time.time() + 7200) as log:
            until(lambda: come("copy") == [b"before", b"later", b"a", b"b"])
            log.checkpoint()


def test_producer_that_used_the_promoted_copy_refuses_the_former_leader(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, RemoteLog(address, timeout_s=5) as log:
        log.append([batch("t", 0, 0, 1)])
        log._generation = 2
        with pytest.raises(NotLeader, match="generation 1, and its producer has appended to 2"):
            log.append([batch("t", 0, 1, 1)])


def test_a_copy_that_cannot_be_promoted_does_not_stop_its_leader(tmp_path: Path) -> None:
    with served(leading(tmp_path)) as address, served(following(tmp_path, address)), log_at(address) as leader:
        leader.append([batch("t", 0, 0, 5)])
        until_copied(tmp_path / "leader", tmp_path / "copy")
    with Log(tmp_path / "leader", LogConfig(file_size_bytes_max=1000)) as log:
        for offset in range(5, 105, 10):
            log.append([batch("t", 0, offset, 10)])
        assert log.delete_old(size_bytes_max=2000)
    copy = copy_of(tmp_path / "copy")
    assert copy is not None
    with served(leading(tmp_path)) as address, log_at(address) as leader:
        write_copy(tmp_path / "copy", replace(copy, leader=address))
        with pytest.raises(CopyDiverged, match=r"lacks what its leader .* its leader goes on"):
            promote(tmp_path / "copy")
        assert leader.append([batch("t", 0, 105, 1)]) == [105]


def test_interrupted_promotion_reports_the_stopped_leader_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    with served(leading(tmp_path)) as address, log_at(address) as leader:
        with served(following(tmp_path, address)):
            leader.append([batch("t", 0, 0, 5)])
            until_copied(tmp_path / "leader", tmp_path / "copy")
        with monkeypatch.context() as patched:
            patched.setattr("txmsg.metaq.copy.promotion.take_beside", full)
            with pytest.raises(StorageError, match="disk is full; its leader may take no appends now: promote the cop"):
                promote(tmp_path / "copy")
        with pytest.raises(NotLeader):
            leader.append([batch("t", 0, 5, 1)])
        assert promote(tmp_path / "copy").is_complete


def test_promotion_of_a_leader_is_refused(tmp_path: Path) -> None:
    Log(tmp_path).close()
    with pytest.raises(MisuseError, match="leads already"):
        promote(tmp_path)
