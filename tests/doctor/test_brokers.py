"""Each check of brokers finds its planted cause in a real cluster."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.integration.cli_harness import said, store_half
from tests.waiting import until
from txmsg import Message, Producer
from txmsg.administration.cluster import ClientQuery, ClusterService, Figure
from txmsg.checks.check import CRITICAL, Finding
from txmsg.metrics.catalogue import CATALOGUE, OTHER
from txmsg.ops.cli.connections import asker
from txmsg.ops.cli.main import main
from txmsg.ops.doctor import brokers
from txmsg.ops.doctor.brokers import PROBES, BrokerAnswer, ProbedCluster
from txmsg.ops.doctor.probe import Probe, examine


@pytest.fixture(scope="module")
def url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    name = f"{notify_template}_doctor"
    yield postgres.create_database(name, template=notify_template)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def broker(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    log = tmp_path_factory.mktemp("doctor") / "broker.log"
    with BrokerProcess(url, "--id", "well", "--first-check-s", "3600", log=log) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(broker: BrokerProcess) -> ProbedCluster:
    """The answers of a healthy cluster."""
    with Producer(broker.address, group="shop") as producer:
        producer.send(Message("paid", b"1"))
    return brokers.asked(asker, broker.address)


@pytest.fixture
def session(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        yield connection


Session = psycopg.Connection[tuple[object, ...]]


def found_by(check: Probe[ProbedCluster], cluster: ProbedCluster) -> list[Finding]:
    assert check in PROBES
    return list(check(cluster))


def with_broker(cluster: ProbedCluster, **changes: str) -> ProbedCluster:
    """Return the cluster with another broker that differs from the existing one."""
    [answer] = cluster.answers
    other = dataclasses.replace(answer.broker, **{"id": "other", **changes})  # type: ignore[arg-type]
    answers = [answer] if other.state == "dead" else [answer, dataclasses.replace(answer, broker=other)]
    state = dataclasses.replace(cluster.state, brokers=[answer.broker, other])
    return dataclasses.replace(cluster, state=state, answers=answers)


def with_figures(cluster: ProbedCluster, metric: str, *labels: str, value: float) -> ProbedCluster:
    """Return the cluster with another value of a metric."""
    assert metric in CATALOGUE
    figures = dataclasses.replace(cluster.figures, figures=[Figure(name=metric, labels=labels, value=value)])
    answers = [dataclasses.replace(each, figures=figures) for each in cluster.answers]
    return dataclasses.replace(cluster, figures=figures, answers=answers)


def test_healthy_brokers_have_no_findings(broker: BrokerProcess, cluster: ProbedCluster) -> None:
    assert cluster.answers[0].figures is not None
    assert list(brokers.probe_brokers(asker, broker.address)) == []


def test_unreachable_broker_is_the_only_finding() -> None:
    [found] = brokers.probe_brokers(asker, "127.0.0.1:1")
    assert (found.check.name, found.severity) == ("broker-reachable", CRITICAL)


def test_a_broker_that_does_not_answer_at_its_address_is_found(
    broker: BrokerProcess, session: Session, cluster: ProbedCluster
) -> None:
    session.execute(
        "insert into txmsg.broker (id, address, state, release, schema_revision, expires_at) "
        "select 'away', '127.0.0.1:1', 'active', release, schema_revision, now() + interval '1 hour' from txmsg.broker"
    )
    try:
        found = list(examine((brokers.broker_addresses,), lambda: nullcontext(brokers.asked(asker, broker.address))))
    finally:
        session.execute("delete from txmsg.broker where id = 'away'")
    assert [each.what.partition(":")[0] for each in found] == ["broker away does not answer at 127.0.0.1"]
    assert found_by(brokers.broker_addresses, cluster) == []


def test_two_brokers_at_one_address_are_found(cluster: ProbedCluster) -> None:
    [found] = found_by(brokers.broker_addresses, with_broker(cluster))
    assert found.what == f"well answers at {cluster.answers[0].broker.address}, the address of broker other"


def test_brokers_of_two_releases_are_found(cluster: ProbedCluster) -> None:
    assert found_by(brokers.releases, cluster) == []
    [found] = found_by(brokers.releases, with_broker(cluster, release="9.9"))
    assert "9.9: other" in found.what
    [answer] = cluster.answers
    newer = dataclasses.replace(answer, broker=dataclasses.replace(answer.broker, release="9.9"))
    [found] = found_by(brokers.releases, dataclasses.replace(cluster, answers=[newer]))
    assert found.what.endswith("the brokers of 9.9")


def test_clients_of_another_release_than_the_brokers_are_found(broker: BrokerProcess, cluster: ProbedCluster) -> None:
    [answer] = cluster.answers
    newer = dataclasses.replace(answer, broker=dataclasses.replace(answer.broker, release="9.9"))
    with Producer(broker.address, group="old-shop"):
        until(lambda: cluster.ask(ClusterService.clients, ClientQuery(contains="old-shop")).clients)
        assert found_by(brokers.client_releases, cluster) == []
        [found] = found_by(brokers.client_releases, dataclasses.replace(cluster, answers=[newer]))
    assert re.match(
        r"1 clients are of release \S+, the first of group old-shop on .+; the brokers are of 9.9", found.what
    )


def test_broker_with_a_wrong_clock_is_found(cluster: ProbedCluster) -> None:
    assert found_by(brokers.broker_clocks, cluster) == []
    [answer] = cluster.answers
    assert answer.figures is not None
    late = dataclasses.replace(answer.figures, now=answer.figures.now - timedelta(seconds=90))
    off: BrokerAnswer = dataclasses.replace(answer, figures=late)
    [found] = found_by(brokers.broker_clocks, dataclasses.replace(cluster, answers=[off]))
    assert "s behind that of this machine" in found.what


def test_drained_and_dead_brokers_are_found(cluster: ProbedCluster) -> None:
    assert found_by(brokers.drained_brokers, cluster) == []
    [found] = found_by(brokers.drained_brokers, with_broker(cluster, state="draining"))
    assert "txmsg cluster resume other" in found.fix
    gone = with_broker(cluster, state="dead", address="gone:7700")
    assert found_by(brokers.figures, gone) == []  # another has joined since
    [found] = found_by(brokers.figures, with_figures(gone, "txmsg_brokers_dead", value=1))
    assert found.what == "1 brokers have died and are not replaced"


def test_queues_that_remain_without_a_broker_are_found(cluster: ProbedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(brokers.undelivered_queues, cluster) == []
    state = dataclasses.replace(cluster.state, queues_unassigned=2)
    in_between = dataclasses.replace(cluster, state=state)
    assert found_by(brokers.undelivered_queues, in_between) == []  # they have one at the second check
    monkeypatch.setattr(brokers, "_ASSIGNED_S_MAX", 0)
    [found] = found_by(brokers.undelivered_queues, in_between)
    assert found.severity is CRITICAL


@pytest.mark.parametrize(
    ("metric", "labels", "values", "what"),
    [
        ("txmsg_bound_used_ratio", ["connections"], (0.91, 0.8), "connections of broker well is 91% full"),
        ("txmsg_tls_certificate_remaining_seconds", [], (13 * 86400.0, 15 * 86400.0),
         "the certificate of broker well expires in 13d"),
        ("txmsg_tls_certificate_remaining_seconds", [], (-1.0, 15 * 86400.0),
         "the certificate of broker well has expired"),
        ("txmsg_disk_free_ratio", [], (0.09, 0.2), "the disk of the data of broker well has 9% free"),
        ("txmsg_halves", ["parked"], (2, 0), "2 transactions are parked in doubt"),
        ("txmsg_half_oldest_seconds", ["in_doubt"], (700, 600),
         "a transaction has been undecided for 11m40s although it is checked"),
        ("txmsg_group_lag_seconds", ["sms", "paid"], (400, 300), "group sms in topic paid is 6m40s behind"),
        ("txmsg_group_lag_seconds", [OTHER, OTHER], (400, 300), f"group {OTHER} in topic {OTHER} is 6m40s behind"),
    ],
)  # fmt: skip
def test_alert_conditions_on_metrics_are_found(
    metric: str, labels: list[str], values: tuple[float, float], what: str, cluster: ProbedCluster
) -> None:
    wrong, quiet = values
    assert found_by(brokers.figures, cluster) == []
    [found] = found_by(brokers.figures, with_figures(cluster, metric, *labels, value=wrong))
    assert found.what == what
    assert OTHER not in found.fix
    assert found_by(brokers.figures, with_figures(cluster, metric, *labels, value=quiet)) == []


def test_thresholds_are_those_that_the_brokers_use(broker: BrokerProcess, cluster: ProbedCluster) -> None:
    behind = with_figures(cluster, "txmsg_group_lag_seconds", "sms", "paid", value=400)
    assert len(found_by(brokers.figures, behind)) == 1
    said("config", "set", "broker.alerts.group_behind_s", "7m", "--broker", broker.address)
    try:
        until(lambda: found_by(brokers.figures, behind) == [])
    finally:
        said("config", "unset", "broker.alerts.group_behind_s", "--broker", broker.address)


def test_transactions_of_a_group_without_a_client_are_found(
    broker: BrokerProcess, session: Session, cluster: ProbedCluster
) -> None:
    assert found_by(brokers.figures, cluster) == []
    half = store_half(broker, group="billing")
    session.execute("update txmsg.half_message set next_check_at = now() - interval '1 hour'")
    late = with_figures(cluster, "txmsg_half_overdue_seconds", value=3600)
    [found] = found_by(brokers.figures, late)
    assert found.what.startswith("1 transactions of producer group billing are not checked")
    assert "start a client of its producer group" in found.fix
    assert "not checked since" in said("half", "list", "--broker", broker.address)
    said("half", "rollback", half, "--broker", broker.address, "--yes")


def test_a_group_without_a_consumer_and_its_dead_letters_are_found(
    broker: BrokerProcess, session: Session, cluster: ProbedCluster
) -> None:
    assert found_by(brokers.unread_groups, cluster) == []
    session.execute("insert into txmsg.consumer_group (name) values ('sms')")
    session.execute(
        "insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) "
        "select g.id, q.id, 0, 1 from txmsg.consumer_group g, txmsg.queue q"
    )
    session.execute(
        "insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, transaction_id, n, body, born_at, "
        "stored_at) select group_id, queue_id, 0, 1, gen_random_uuid(), 0, '', now(), now() from txmsg.cursor limit 1"
    )
    try:
        [unread] = found_by(brokers.unread_groups, cluster)
        told = with_figures(cluster, "txmsg_group_dead_letters", "sms", "paid", value=1)
        [dead] = found_by(brokers.figures, told)
    finally:
        session.execute("delete from txmsg.consumer_group")
    assert unread.what == "1 messages wait for group sms, and it has no consumer"
    assert dead.what == "group sms in topic paid has 1 dead letters"


def test_topic_that_never_had_a_message_is_found(
    broker: BrokerProcess, session: Session, cluster: ProbedCluster
) -> None:
    assert found_by(brokers.unused_topics, cluster) == []
    said = CliRunner().invoke(main, ["topic", "create", "payed", "--broker", broker.address])
    assert said.exit_code == 0, said.output
    session.execute("insert into txmsg.consumer_group (name) values ('misspelt')")
    session.execute(
        "insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) select g.id, q.id, 0, 1 "
        "from txmsg.consumer_group g, txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = 'payed'"
    )
    try:
        assert found_by(brokers.unused_topics, cluster) == []  # it is new: its producer may still start
        session.execute("update txmsg.topic set created_at = now() - interval '1 day' where name = 'payed'")
        [found] = found_by(brokers.unused_topics, cluster)
    finally:
        session.execute("delete from txmsg.consumer_group")
    assert found.what == "group misspelt reads topic payed, which has never had a message"


# ---- the command


def test_command_asks_a_broker_registered_in_the_database(
    broker: BrokerProcess, url: str, cluster: ProbedCluster
) -> None:
    assert cluster.state.brokers
    done = CliRunner().invoke(main, ["doctor", "--storage", url, "--json"])
    found = json.loads(done.stdout)["findings"]
    assert {each["check"] for each in found} <= {  # of the server, which other tests use
        *(
            "fsync",
            "full-page-writes",
            "data-checksums",
            "connections",
            "failover-slots",
            "disk-nearly-full",
            "dead-rows",
        ),
        *("slot-lost", "slot-in-danger", "slot-unread", "slot-keeps-log", "slot-unlimited"),
    }
    assert all(each.keys() == {"check", "severity", "what", "why", "fix"} for each in found)
    assert done.exit_code == int(any(each["severity"] == "problem" for each in found))


def test_command_prints_fixes_and_exits_with_1_on_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "log"
    done = CliRunner().invoke(main, ["doctor", "--broker", "127.0.0.1:1", "--log", str(missing)])
    assert done.exit_code == 1
    assert "PROBLEM  broker-reachable: no answer from a broker at 127.0.0.1:1" in done.stdout
    assert f"PROBLEM  log-opens: the log {missing} cannot be opened" in done.stdout
    assert done.stdout.endswith("problems: 2, warnings: 0\n")


def test_command_reports_that_nothing_is_wrong(broker: BrokerProcess, cluster: ProbedCluster) -> None:
    assert cluster.state.brokers
    done = CliRunner().invoke(main, ["doctor", "--broker", broker.address])
    assert (done.stdout, done.exit_code) == ("nothing is wrong\n", 0)
