"""Commands of one release work with a broker of another, in both directions.

The next release has one more setting of topics: the example of CONTRIBUTING.md, made by a copy of the working tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.releases import NOW, Release, next_release
from tests.broker_process import BrokerProcess
from tests.integration.client_harness import collecting
from txmsg.client import Producer
from txmsg.message import Message

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

READS = (
    "topic list",
    "topic show orders",
    "group list",
    "group show mailer",
    "group lag mailer",
    "group retries mailer",
    "dead-letter list",
    "half list",
    "message find --topic orders --from 1h",
    "schema list",
    "config show",
    "config history",
    "alert list",
    "alert history",
    "audit list",
    "cluster show",
    "cluster clients",
    "cluster figures",
)
CHANGES = (
    "topic create made --queues 2",
    "topic alter made --unread drop",
    "group alter mailer --rate 5",
    "group seek mailer --topic orders --to earliest --yes",
    "dead-letter purge --group mailer --yes",
    "config set broker.retention_s 9d --yes",
    "config unset broker.retention_s --yes",
    "alert silence rule=x --for 1h --reason test",
    "cluster resume {broker}",
    "topic alter made --permission none",
    "group create extra",
    "group delete extra --yes",
)


@pytest.fixture
def following(tmp_path: Path) -> Release:
    return next_release(tmp_path / "next", version="99.0.0", revision="9999")


@pytest.fixture(params=["the broker is of the next release", "the command is of the next release"])
def sides(request: pytest.FixtureRequest, following: Release) -> tuple[Release, Release]:
    """Return the release of the broker and the release of the command."""
    return (following, NOW) if request.param.startswith("the broker") else (NOW, following)


@pytest.fixture
def broker(
    sides: tuple[Release, Release], following: Release, database_url: str, tmp_path: Path
) -> Iterator[BrokerProcess]:
    following.run("db", "upgrade", "--storage", database_url)
    log = tmp_path / "broker.log"
    with BrokerProcess(database_url, log=log, environment=sides[0].environment) as broker:
        yield broker


def test_commands_that_read_and_change_work_with_a_broker_of_another_release(
    broker: BrokerProcess, sides: tuple[Release, Release]
) -> None:
    command, address = sides[1], broker.address
    with Producer(address, group="shop") as producer, collecting(address, "orders", group="mailer") as got:
        producer.send(Message("orders", b"1", key="k"))
        got.get(timeout=60)
        for read in READS:
            assert isinstance(json.loads(command.run(*read.split(), "--broker", address, "--json")), dict), read
        (broker_id,) = [
            each["id"] for each in json.loads(command.run("cluster", "show", "--broker", address, "--json"))["brokers"]
        ]
        for change in CHANGES:
            command.run(*change.format(broker=broker_id).split(), "--broker", address)
    settings = json.loads(command.run("topic", "show", "orders", "--broker", address, "--json"))
    assert ("body_size_bytes_max" in json.dumps(settings)) == (command is not NOW)


def test_a_setting_of_the_next_release_is_refused_by_an_old_broker_and_kept_by_an_old_command(
    broker: BrokerProcess, sides: tuple[Release, Release], following: Release
) -> None:
    address = ("--broker", broker.address)
    NOW.run("topic", "create", "orders", *address)
    set_it = ("topic", "alter", "orders", "--body-size-bytes-max", "7", *address)
    if sides[0] is following:
        following.run(*set_it)
        assert '"body_size_bytes_max": 7' in following.run("topic", "show", "orders", "--json", *address)
        NOW.run("topic", "alter", "orders", "--unread", "drop", *address)
        assert '"body_size_bytes_max": 7' in following.run("topic", "show", "orders", "--json", *address)
    else:
        refused = following.refused(*set_it)
        assert "has body_size_bytes_max, which this release does not know: upgrade it" in refused
