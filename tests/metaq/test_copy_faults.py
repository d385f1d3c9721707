"""Copies under kill -9 and network partitions: equal to the byte at the end, and no acknowledged message is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.chaos.plan import Cut
from tests.metaq.copies import CopyProcess, end_of, until_copied
from tests.metaq.logs import read_around
from tests.metaq.servers import MetaQProcess, linked, log_at
from tests.waiting import until
from txmsg.errors import BrokerUnavailable, NotLeader, OutcomeUnknown
from txmsg.message import Message
from txmsg.metaq.acks import Acks
from txmsg.metaq.copy.promotion import promote
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.store.reader import LogReader

pytestmark = pytest.mark.long

T = LogQueue("t", 0)
KILLS = 12


class Load:
    """Appends to a server until it is stopped, and records acknowledged messages with their offsets."""

    def __init__(self, address: str) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.error: BaseException | None = None
        self._address = address
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        try:
            with RemoteLog(self._address, timeout_s=20) as log:
                producer = LogProducer(log, queues=1)
                number = 0
                while not self._stopped.is_set():
                    messages = [Message("t", b"%d" % (number + each)) for each in range(20)]
                    number += 20
                    try:
                        places = producer.send_many(messages)
                    except (BrokerUnavailable, OutcomeUnknown):
                        continue
                    self.acknowledged |= {
                        place.offset: message.body for place, message in zip(places, messages, strict=True)
                    }
        except NotLeader:
            pass
        except BaseException as exc:  # noqa: BLE001 - raised in the test
            self.error = exc

    def grown(self) -> None:
        """Wait for more acknowledgements."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before or self.error)

    def stop(self) -> dict[int, bytes]:
        self._stopped.set()
        self._thread.join(60)
        if self.error is not None:
            raise AssertionError("the load ended") from self.error
        return self.acknowledged


@contextmanager
def pair(root: Path, *options: str) -> Iterator[tuple[MetaQProcess, CopyProcess]]:
    with ExitStack() as stack:
        leader = stack.enter_context(MetaQProcess(root / "leader", *options, log=root / "leader.txt"))
        copy = stack.enter_context(CopyProcess(leader.address, root / "copy", log=root / "copy.txt"))
        yield leader, copy


def test_leader_and_copy_killed_under_load_are_equal_in_the_end(tmp_path: Path) -> None:
    choose = random.Random(11)
    with pair(tmp_path, "--copies-required", "1") as (leader, copy):
        load = Load(leader.address)
        for _ in range(KILLS):
            load.grown()
            killed = choose.choice([leader, copy])
            killed.kill()
            killed.start()
        load.grown()
        acknowledged = load.stop()
        until_copied(tmp_path / "leader", tmp_path / "copy")
    found = read_around(LogReader(tmp_path / "copy").queue("t", 0))
    assert acknowledged.items() <= found.items()
    assert len(set(found.values())) == len(found), "an append was carried out twice"


def test_promoted_synchronous_copy_has_all_acknowledged_messages(tmp_path: Path) -> None:
    with pair(tmp_path, "--copies-required", "1") as (leader, copy):
        load = Load(leader.address)
        load.grown()
        load.grown()
        leader.kill()
        copy.kill()
        promoted = promote(tmp_path / "copy", leader_is_lost=True)
        assert promoted.generation == 2
        copy.leader = ""
        with MetaQProcess(tmp_path / "copy", log=tmp_path / "new.txt", address=leader.address):
            load.grown()  # by the same producer, whose address leads here now
            acknowledged = load.stop()
        found = read_around(LogReader(tmp_path / "copy").queue("t", 0))
        assert acknowledged.items() <= found.items()
        assert len(set(found.values())) == len(found), "an append was carried out twice"


def test_returning_former_leader_acknowledges_nothing_and_follows(tmp_path: Path) -> None:
    with pair(tmp_path, "--copies-required", "1") as (leader, copy):
        load = Load(leader.address)
        load.grown()
        copy.stop()
        assert promote(tmp_path / "copy").is_complete
        with log_at(leader.address) as log, pytest.raises(NotLeader):
            LogProducer(log).send(Message("t", b"late"))
        acknowledged = load.stop()
        leader.kill()
        new = MetaQProcess(tmp_path / "copy", log=tmp_path / "new.txt")
        old = CopyProcess(new.address, tmp_path / "leader", log=tmp_path / "old.txt")
        with new, log_at(new.address) as log:
            old.leader = new.address
            with old:
                LogProducer(log, queues=1, acks=Acks.DISK).send(Message("t", b"new"))
                until_copied(tmp_path / "copy", tmp_path / "leader")
                until(lambda: b"new" in read_around(LogReader(tmp_path / "leader").queue("t", 0)).values())
        found = read_around(LogReader(tmp_path / "leader").queue("t", 0))
        assert acknowledged.items() <= found.items()
        assert b"late" not in found.values()


def test_two_data_centres_following_each_other_are_equal_after_a_network_partition(tmp_path: Path) -> None:
    sites = ("hz", "sh")
    with ExitStack() as stack:
        servers = {
            site: stack.enter_context(MetaQProcess(tmp_path / site, log=tmp_path / f"{site}.txt")) for site in sites
        }
        links, copies = {}, {}
        for site in sites:
            links[site], far = stack.enter_context(linked(servers[site].address))
            directory = tmp_path / f"{site}-copy"
            copies[site] = stack.enter_context(CopyProcess(far, directory, log=tmp_path / f"{site}-copy.txt"))
        loads = {site: Load(servers[site].address) for site in sites}
        for cut in (Cut.RESET, Cut.SILENT):
            for site in sites:
                links[site].cut(cut)
            for load in loads.values():
                load.grown()  # writing needs no other data centre
            for site in sites:
                end = end_of(tmp_path / f"{site}-copy")
                links[site].heal()
                until(lambda site=site, end=end: end_of(tmp_path / f"{site}-copy") > end)  # type: ignore[misc]
        for site in sites:
            acknowledged = loads[site].stop()
            until_copied(tmp_path / site, tmp_path / f"{site}-copy")
            with log_at(copies[site].address) as log:
                end = max(acknowledged) + 1
                until(lambda log=log, end=end: log.ranges([T])[T].end == end)  # type: ignore[misc]
