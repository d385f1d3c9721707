"""Parts of the data centres demo without processes: the plan of cuts, the network proxy, and the verdict."""

from __future__ import annotations

import socket
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from tests.no_process import NoAudience, ProcesslessChild
from txmsg.ops.demo.data_centres.copy_run import CopyRun, DataCentresPlan
from txmsg.ops.demo.data_centres.cuttable_link import CuttableLink
from txmsg.ops.demo.data_centres.site_stage import SITES, DataCentres
from txmsg.runtime.child import ChildFailed


@pytest.mark.parametrize("cuts", [0, 1, 3, 100])
def test_the_network_is_cut_as_often_as_planned_and_restored_at_the_end(cuts: int) -> None:
    moments = [moment for cut in DataCentresPlan(orders=1000, seconds=1, cuts=cuts).cuts_at for moment in cut]
    assert len(moments) == 2 * cuts
    assert all(0 < moment < 1 for moment in moments)
    assert all(after > before for before, after in pairwise(moments))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"orders": 3}, "3 orders"), ({"seconds": 0.5}, "0.5 seconds"), ({"cuts": -1}, "-1 cuts: give 0 to 100")],
)
def test_an_impossible_plan_is_refused(wrong: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DataCentresPlan(**{"orders": 1000, "seconds": 1.0, **wrong})  # type: ignore[arg-type]


def test_a_proxy_forwards_all_bytes_until_it_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, CuttableLink() as line:
        near = line.to(f"127.0.0.1:{server.getsockname()[1]}")

        def echo() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    while data := connection.recv(100):
                        if data == b"end":
                            return
                        connection.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()

        assert asked(near, b"one") == b"one"
        with connected(near) as client:
            client.sendall(b"two")
            assert answer(client) == b"two"
            line.cut()
            assert answer(client) == b""
        assert asked(near, b"three") == b""
        line.heal()
        assert asked(near, b"four") == b"four"
        assert asked(near, b"end") == b""
        thread.join()


class EndingChild(ProcesslessChild):
    """A child that exits cleanly while it is watched."""

    def __init__(self, *statuses: int | None) -> None:
        super().__init__("it")
        self.last_line = "written 100"
        self._statuses = [*statuses]

    @property
    def returncode(self) -> int | None:
        return self._statuses.pop(0) if self._statuses[1:] else self._statuses[0]


@pytest.mark.parametrize("status", [0, 1])
def test_only_a_writer_that_exits_cleanly_while_watched_has_not_failed(status: int, tmp_path: Path) -> None:
    with CuttableLink() as line:
        stage = DataCentres(tmp_path, line)
        for site in SITES:
            stage.children |= {f"{site}-orders": EndingChild(None, status), f"{site}-totals": EndingChild(None)}
        run = CopyRun(DataCentresPlan(orders=100, seconds=1), stage, NoAudience())
        stage.require_running()
        if status:
            with pytest.raises(ChildFailed, match="it ended by itself, with exit status 1"):
                stage.require_running()
        else:
            stage.require_running()
            run.read_children()
            assert run.written == dict.fromkeys(SITES, 100)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def asked(address: str, text: bytes) -> bytes:
    with connected(address) as client:
        try:
            client.sendall(text)
        except ConnectionError:
            return b""
        return answer(client)


def answer(client: socket.socket) -> bytes:
    """Return the answer; empty when the connection is gone."""
    try:
        return client.recv(100)
    except ConnectionError:
        return b""
