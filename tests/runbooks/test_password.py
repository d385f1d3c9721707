"""docs/runbooks/password.md: the database password changes, and a running broker continues with the new one."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.acceptance.neighbour import neighbour
from tests.broker_process import BrokerProcess
from tests.runbooks.machine import Machine
from tests.runbooks.notify import DATABASE
from tests.runbooks.page import Page
from tests.runbooks.user import ServerUser, open_directory
from txmsg.broker import migrate

ROLE, OLD = "notify_broker", "old-secret"


def create_role(machine: Machine) -> None:
    """Create a role; the server asks it for its password, and no other role."""
    hba = machine.data / "pg_hba.conf"
    hba.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
    with psycopg.connect(machine.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute(f"create role {ROLE} login password '{OLD}'")
        connection.execute(f"create database {DATABASE} owner {ROLE}")
        connection.execute("select pg_reload_conf()")


@pytest.mark.long
def test_running_broker_continues_with_the_new_password(tmp_path: Path) -> None:
    user = ServerUser()
    with open_directory() as directory, Machine() as machine:
        machine.create()
        create_role(machine)
        user.make(directory / "broker")
        passfile = directory / "broker" / "pgpass"
        storage = f"postgresql://{ROLE}@127.0.0.1:{machine.port}/{DATABASE}?passfile={passfile}"
        page = Page(
            "password",
            {
                "ADMIN": machine.url(DATABASE),
                "ROLE": ROLE,
                "BROKERS": "notify-a",
                "PASSFILE": passfile,
                "OWNER": user.name,
                "STORAGE": storage,
            },
            {"root_on": '"${@:2}"', "user_on": f'{user.prefix} "${{@:2}}"'},
        )
        migrate.upgrade(storage.replace(f"{ROLE}@", f"{ROLE}:{OLD}@"))
        passfile.write_text(f"*:*:*:{ROLE}:{OLD}\n")
        passfile.chmod(0o600)
        user.take(passfile)
        broker = BrokerProcess(storage, log=tmp_path / "broker.log")
        broker._spawn = user.spawn
        with broker, neighbour(broker.address) as beside:
            beside.goes_on()
            page.run("Change it")
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(storage.replace(f"{ROLE}@", f"{ROLE}:{OLD}@"), connect_timeout=10)
            beside.goes_on()
            assert "as its revision made it" in page.run("Check")
            beside.goes_on()
            assert beside.errors == []
        assert page.left == []
