"""docs/runbooks/restore.md: messages until the moment exist, later ones do not, and the mirror agrees."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.neighbour import neighbour
from tests.broker_process import running_broker
from tests.metaq.servers import MetaQProcess
from tests.mirror.tailer_process import TailerProcess
from tests.ports import own_port
from tests.runbooks.machine import Machine
from tests.runbooks.notify import DATABASE, create_notify, is_mirrored
from tests.runbooks.page import Page
from tests.runbooks.systemctl import systemctl_in
from tests.runbooks.user import ServerUser, open_directory
from tests.waiting import until
from txmsg.message import MessageId


class LogServer(MetaQProcess):
    """The unit `txmsg-metaq`."""

    def __init__(self, data: Path, user: ServerUser, *, said: Path) -> None:
        super().__init__(data, log=said, address=f"127.0.0.1:{own_port()}")
        self._spawn = user.spawn

    def close(self) -> None:
        self.kill()

    def act(self, asked: str) -> None:
        verb, name = asked.split()
        assert name == "txmsg-metaq"
        if verb == "start":
            self.start()
        else:
            assert self.stop() == 0


def stored(url: str) -> set[MessageId]:
    with psycopg.connect(url, connect_timeout=10) as connection:
        return {
            MessageId(f"{transaction}.{n}")
            for transaction, n in connection.execute("select transaction_id, n from txmsg.message")
        }


@pytest.mark.long
@pytest.mark.takes_long
def test_database_is_restored_to_an_earlier_moment(tmp_path: Path) -> None:
    with open_directory() as machine:
        _return_to_an_earlier_moment(tmp_path, machine / "log")


def _return_to_an_earlier_moment(tmp_path: Path, log: Path) -> None:
    user = ServerUser()
    user.make(log)
    server = LogServer(log, user, said=tmp_path / "server.log")
    (tmp_path / "metaq-1").mkdir()
    with Machine() as machine, closing(server), systemctl_in(tmp_path / "metaq-1", server.act):
        create_notify(machine)
        url = machine.url(DATABASE)
        with (
            running_broker(url, log=tmp_path / "broker.log") as broker,
            TailerProcess(url, server.address, said=tmp_path / "tailer.log") as tailer,
        ):
            server.start()
            tailer.start()
            backups = machine.directory / "backups"
            page = Page(
                "restore",
                {"NOTIFY": url, "DATA": machine.data, "BACKUPS": backups, "METAQ": log, "MOMENT": "not yet"},
                {
                    "on_server": machine.shell,
                    "on_log": user.shell,
                    "systemctl_log": f'(cd {tmp_path / "metaq-1"}; ./systemctl "$@")',
                },
            )
            with neighbour(broker.address) as early:
                page.run("Archive the write-ahead log")
                early.goes_on()
                page.run("Back up")
                early.goes_on()
            with psycopg.connect(url, connect_timeout=10) as connection:
                [(moment,)] = connection.execute("select clock_timestamp()::text")
            with neighbour(broker.address) as late:
                late.goes_on()
            until(lambda: is_mirrored(url, log))
            tailer.stop()
            page.set("MOMENT", moment)
            page.run("Restore")
            assert stored(url) == set(early.committed), "all until the moment, and nothing of later"
            with neighbour(broker.address) as after:
                after.goes_on()
            assert stored(url) == {*early.committed, *after.committed}
            assert not is_mirrored(url, log), "the log has what was lost"
            page.run("Continue the mirror")
            assert {path.stat().st_uid for path in log.rglob("*")} == {user.uid}, "the server can write each file"
            tailer.start()
            until(lambda: is_mirrored(url, log))
            assert page.left == []
            tailer.stop()
