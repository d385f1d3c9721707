"""The metrics of real brokers: every catalogued metric is present and changes with its cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said, store_half
from tests.integration.client_harness import WAIT_S, collecting
from tests.metrics.scraping import Scrape, got, require_catalogued, rises, scrape
from tests.ports import own_port
from tests.waiting import until
from txmsg.broker import figures
from txmsg.client import Consumer, Producer
from txmsg.errors import UnknownGroup, UnknownTopic
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metrics.catalogue import CATALOGUE, NAMED_MAX, OTHER, ExportingProcess, MetricKind
from txmsg.metrics.lookup import FRESH_S, PATIENCE_S
from txmsg.runtime.child import ChildFailed
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

SERIES_MIN = 30
STATES = ("new", "in_doubt", "parked")

WITH_TLS = "txmsg_tls_certificate_remaining_seconds"


class Scraped:
    """A broker with metrics."""

    def __init__(self, start_broker: StartBroker, *options: str) -> None:
        self.metrics = f"127.0.0.1:{own_port()}"
        self.broker = start_broker("--http-listen", self.metrics, *options)
        self.address = self.broker.address

    def await_ready(self) -> Scrape:
        until(lambda: got(self.metrics, "/readyz")[0] == 200)
        return scrape(self.metrics)


@pytest.fixture
def scraped(start_broker: StartBroker) -> Scraped:
    return Scraped(start_broker)


def test_every_catalogued_metric_is_present_before_any_traffic(scraped: Scraped) -> None:
    found = scraped.await_ready()
    require_catalogued(found, ExportingProcess.BROKER)
    assert found.series_count >= SERIES_MIN
    per_topic = {"messaging_destination_name", "messaging_consumer_group_name"}
    for metric in CATALOGUE.values():
        if (
            ExportingProcess.BROKER in metric.processes
            and not per_topic & set(metric.labels)
            and metric.name != WITH_TLS
        ):
            assert any(sample.startswith(metric.name) for sample in found.values), metric.name
    assert found.value("txmsg_ready") == 1
    assert found.value("txmsg_lease_held") == 1
    assert found.value("txmsg_brokers") == 1
    assert found.value("txmsg_database_reachable") == 1
    assert 0 <= found.value("txmsg_database_figures_age_seconds") < 60
    assert 0 < found.value("txmsg_process_resident_bytes") < 2**32
    assert 0 < found.value("txmsg_process_open_files") < found.value("txmsg_process_open_files_limit")


def test_metrics_command_shows_the_metrics_without_an_endpoint(broker: BrokerProcess) -> None:
    found: list[dict[str, Any]] = []

    def told() -> dict[str, float]:
        found[:] = json_of("cluster", "figures", "--broker", broker.address)["figures"]
        return {each["name"]: each["value"] for each in found if not each["labels"]}

    until(lambda: told()["txmsg_lease_held"] == 1)  # the first heartbeat may come after the first call
    values = told()
    assert values["txmsg_brokers"] == 1
    assert {each["labels"]["state"] for each in found if each["name"] == "txmsg_halves"} == set(STATES)
    plain = {
        metric.name
        for metric in CATALOGUE.values()
        if ExportingProcess.BROKER in metric.processes and not metric.labels
    }
    histograms = {metric.name for metric in CATALOGUE.values() if metric.kind is MetricKind.HISTOGRAM}
    assert plain - values.keys() <= histograms | {WITH_TLS}
    chosen = json_of("cluster", "figures", "txmsg_leases", "--broker", broker.address)["figures"]
    assert [each["name"] for each in chosen] == ["txmsg_leases"]


def test_metrics_are_not_served_by_default(broker: BrokerProcess) -> None:
    assert "metrics are at" not in broker.log.read_text()


def test_broker_refuses_to_serve_metrics_beyond_localhost_without_tls(start_broker: StartBroker) -> None:
    with pytest.raises(ChildFailed, match="every client that reaches it can read all metrics"):
        start_broker("--http-listen", "0.0.0.0:0")


def test_sent_and_delivered_messages_are_counted(scraped: Scraped) -> None:
    before = scraped.await_ready()
    metrics = scraped.metrics
    with Producer(scraped.address, group="shop") as producer:
        for number in range(7):
            producer.send(Message("t", b"%d" % number))
        rises(metrics, "txmsg_stored_messages_total", by=7, since=before, kind="plain")
        with collecting(scraped.address, "t", group="mailer"):
            rises(metrics, "txmsg_acknowledged_messages_total", by=7, since=before)
            found = scrape(metrics)
    labels = {"messaging_consumer_group_name": "mailer", "messaging_destination_name": "t"}

    def all_processed() -> Scrape | None:
        now = scrape(metrics)
        series = now.values.get("txmsg_group_processed_messages_total", {})
        return now if series.get(frozenset(labels.items())) == 7 else None

    assert found.value("txmsg_delivered_messages_total") == 7
    assert found.value("txmsg_delivery_groups") == 1
    for direction in ("received", "sent"):
        name = f"txmsg_network_{direction}_bytes_total"
        assert found.value(name) > before.value(name)
    assert found.value("txmsg_calls_total") > before.value("txmsg_calls_total")
    assert found.value("txmsg_connections") >= 1
    assert found.value("txmsg_attached_clients") >= 1
    items = {name: found.value(f"txmsg_writer_batch_items_{name}", writer="other") for name in ("count", "sum")}
    assert items["sum"] == 7
    assert 1 <= items["count"] <= 7
    assert found.value("txmsg_writer_batch_seconds_count", writer="other") == items["count"]
    assert found.value("txmsg_database_used_seconds_total", pool="delivery") > 0
    now = until(all_processed)
    assert now.value("txmsg_group_lag_messages", **labels) == 0
    assert now.value("txmsg_group_lag_seconds", **labels) == 0
    assert now.value("txmsg_topic_messages_total", messaging_destination_name="t") == 7


def test_transactions_are_counted_by_outcome_and_deciding_party(scraped: Scraped) -> None:
    before = scraped.await_ready()
    metrics = scraped.metrics
    with Producer(scraped.address, group="shop") as producer:
        for state in (TransactionState.COMMIT, TransactionState.COMMIT, TransactionState.ROLLBACK):
            producer.end(producer.half([Message("t", b"1")]), state)
        found = rises(metrics, "txmsg_stored_messages_total", by=3, since=before, kind="half")
        for outcome, count in (("commit", 2), ("rollback", 1), ("unknown", 0)):
            assert found.value("txmsg_outcomes_total", outcome=outcome, decided_by="client") == count
        producer.end(producer.half([Message("t", b"1")]), TransactionState.UNKNOWN)
        rises(metrics, "txmsg_outcomes_total", since=before, outcome="unknown", decided_by="client")
    lost = store_half(scraped.broker)
    said("half", "commit", lost, "--broker", scraped.address, "--yes")
    found = rises(metrics, "txmsg_outcomes_total", since=before, outcome="commit", decided_by="person")
    assert found.value("txmsg_outcomes_total", outcome="commit", decided_by="client") == 2


def test_checks_their_answers_and_parked_halves_are_counted(start_broker: StartBroker) -> None:
    scraped = Scraped(start_broker, "--first-check-s", "0", "--check-interval-s", "5", "--checks-max", "1")
    before = scraped.await_ready()

    class Listener:
        answer = TransactionState.COMMIT

        def check(self, message: ReceivedMessage) -> TransactionState:
            return self.answer

    listener = Listener()
    with Producer(scraped.address, group="shop", check_listener=listener) as producer:
        producer.start()
        store_half(scraped.broker, group="shop")
        rises(scraped.metrics, "txmsg_check_answers_total", since=before, outcome="commit")
        rises(scraped.metrics, "txmsg_outcomes_total", since=before, outcome="commit", decided_by="check")
        listener.answer = TransactionState.ROLLBACK
        store_half(scraped.broker, group="shop")
        rises(scraped.metrics, "txmsg_check_answers_total", since=before, outcome="rollback")
        listener.answer = TransactionState.UNKNOWN
        store_half(scraped.broker, group="shop")
        rises(scraped.metrics, "txmsg_check_answers_total", since=before, outcome="unknown")
        rises(scraped.metrics, "txmsg_halves_parked_total", since=before)
        found = until(
            lambda: now if (now := scrape(scraped.metrics)).value("txmsg_halves", state="parked") == 1 else None
        )
    assert found.value("txmsg_checks_total") == 3
    assert found.value("txmsg_half_oldest_seconds", state="parked") > 0
    assert found.value("txmsg_halves", state="new") == 0


def test_failures_retries_and_dead_letters_are_counted(scraped: Scraped) -> None:
    before = scraped.await_ready()
    metrics = scraped.metrics
    with Producer(scraped.address, group="shop") as producer:
        producer.send(Message("t", b"1"))

    def fails(message: ReceivedMessage) -> None:
        raise ValueError("of the test")

    consumer = Consumer(scraped.address, group="mailer")
    consumer.subscribe("t")(fails)
    with consumer:
        rises(metrics, "txmsg_refused_messages_total", since=before)
        found = rises(metrics, "txmsg_retries_total", since=before)
        assert found.total("txmsg_dead_letters_total") == 0
        said("group", "alter", "mailer", "--retries", "1", "--retry-delays", "1s", "--broker", scraped.address)
        rises(metrics, "txmsg_dead_letters_total", since=before)
        until(lambda: scrape(metrics).total("txmsg_group_dead_letters") == 1)


def test_unsettled_messages_expire_and_a_later_settlement_counts_as_late(scraped: Scraped) -> None:
    before = scraped.await_ready()
    with Producer(scraped.address, group="shop") as producer:
        producer.send(Message("t", b"1"))
    receive = pb.ReceiveRequest(
        group="mailer",
        client_id="c",
        subscriptions=[pb.Subscription(topic="t", tags="*")],
        max_messages=1,
        wait_ms=20_000,
        visibility_timeout_ms=1000,
    )
    with BlockingChannel(scraped.address) as channel:
        [batch] = channel.call(Notify.receive, receive, timeout_s=WAIT_S).batches
        assert scrape(scraped.metrics).value("txmsg_delivery_in_flight_messages") in {0, 1}  # it may have expired
        rises(scraped.metrics, "txmsg_expired_messages_total", since=before)
        refusal = pb.Refusal(receipt=batch.receipt, error="boom")
        settle = pb.ReceiveRequest(group="mailer", client_id="c", refusals=[refusal])
        assert channel.call(Notify.receive, settle, timeout_s=WAIT_S).expired == [batch.receipt]
    found = rises(scraped.metrics, "txmsg_late_messages_total", since=before)
    assert found.value("txmsg_acknowledged_messages_total") == 0


def test_check_back_without_a_client_is_counted_and_raises_an_alert(
    start_broker: StartBroker, notify_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_BROKER_ALERTS_INTERVAL_S", "1")
    scraped = Scraped(start_broker)
    scraped.await_ready()
    assert scrape(scraped.metrics).value("txmsg_half_overdue_seconds") == 0
    store_half(scraped.broker)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.half_message set next_check_at = now() - interval '1 hour'")
    found = until(
        lambda: now if (now := scrape(scraped.metrics)).value("txmsg_half_overdue_seconds") > 3600 - 10 else None
    )
    assert found.value("txmsg_halves", state="new") == 1

    until(lambda: "TxmsgChecksOverdue" in said("alert", "list", "--broker", scraped.address))


def test_lag_is_reported_by_group_and_topic_with_the_oldest_age(scraped: Scraped, notify_url: str) -> None:
    scraped.await_ready()
    with Producer(scraped.address, group="shop") as producer:
        with collecting(scraped.address, "t", group="mailer") as got:
            producer.send(Message("t", b"first"))
            assert got.get(timeout=WAIT_S).body == b"first"
        for _ in range(3):
            producer.send(Message("t", b"next"))
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.message set stored_at = now() - interval '1 hour' where body = 'next'")
    labels = {"messaging_consumer_group_name": "mailer", "messaging_destination_name": "t"}

    def lagging() -> Scrape | None:
        found = scrape(scraped.metrics)
        series = frozenset(labels.items())
        lag = found.values.get("txmsg_group_lag_messages", {}).get(series)
        return found if lag == 3 and found.value("txmsg_group_lag_seconds", **labels) > 3000 else None

    found = until(lagging)
    assert found.value("txmsg_group_lag_seconds", **labels) < 5000
    assert found.value("txmsg_group_processed_messages_total", **labels) == 1


def send_ten(scraped: Scraped) -> None:
    """Send ten messages to topic t once the broker is ready."""
    scraped.await_ready()
    with Producer(scraped.address, group="shop") as producer:
        for _ in range(10):
            producer.send(Message("t", b"1"))


def test_number_of_group_series_is_bounded_and_other_groups_are_summed_up(scraped: Scraped, notify_url: str) -> None:
    send_ten(scraped)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(
            "with g as (insert into txmsg.consumer_group (name) select 'g' || lpad(n::text, 5, '0') "
            "from generate_series(0, 9999) n order by n returning id) "
            "insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) "
            "select g.id, q.id, 0, 0 from g cross join txmsg.queue q"
        )

    def all_told() -> Scrape | None:
        found = scrape(scraped.metrics)
        return found if found.total("txmsg_group_lag_messages") == 100_000 else None

    found = until(all_told)
    series = found.values["txmsg_group_lag_messages"]
    others = {"messaging_consumer_group_name": "(other)", "messaging_destination_name": "(other)"}
    assert len(series) == NAMED_MAX + 1
    assert found.value("txmsg_group_lag_messages", **others) == (10_000 - NAMED_MAX) * 10
    first = {"messaging_consumer_group_name": "g00000", "messaging_destination_name": "t"}
    assert found.value("txmsg_group_lag_messages", **first) == 10
    assert found.value("txmsg_group_lag_seconds", **others) > 0
    assert (found.value("txmsg_groups"), found.value("txmsg_group_pairs")) == (10_000, 10_000)
    assert got(scraped.metrics, "/livez")[0] == 200


_GROUPS_THAT_READ_ALL = """
with g as (insert into txmsg.consumer_group (name) select 'g' || lpad(n::text, 5, '0') from generate_series(1, %s) n
            order by n returning id)
insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select g.id, q.id, coalesce((select max(m.queue_offset) + 1 from txmsg.message m where m.queue = q.id), 0), 0
  from g cross join txmsg.queue q
"""
_ONE_FAILED = """
insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, stored_at)
select g.id, m.queue, m.queue_offset, 1, 'infinity', m.transaction_id, m.n, m.body, m.born_at, m.stored_at
  from txmsg.consumer_group g cross join (select * from txmsg.message limit 1) m where g.name = %(retries)s;
insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, transaction_id, n, body, born_at, stored_at)
select g.id, m.queue, m.queue_offset, 1, m.transaction_id, m.n, m.body, m.born_at, m.stored_at
  from txmsg.consumer_group g cross join (select * from txmsg.message limit 1) m where g.name = %(dead)s
"""


def test_groups_with_longest_lag_or_failures_have_series(scraped: Scraped, notify_url: str) -> None:
    send_ten(scraped)
    *_, dead, retries, waits = (f"g{number + 1:05}" for number in range(4 * NAMED_MAX))
    of_group = "group_id = (select id from txmsg.consumer_group where name = %s)"
    with psycopg.connect(notify_url, connect_timeout=10, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(_GROUPS_THAT_READ_ALL, [4 * NAMED_MAX])
        # Three of four have a message to read: more than can be named. One has waited for an hour, two have failed.
        connection.execute(
            "update txmsg.cursor set next_offset = greatest(0, next_offset - 1) where group_id %% 4 > 0", []
        )
        connection.execute(f"update txmsg.cursor set next_offset = 0 where {of_group}".encode(), [waits])
        connection.execute(
            "update txmsg.message m set stored_at = now() - interval '1 hour' where queue_offset = 0 and exists ("
            "select from txmsg.message n where n.queue = m.queue and n.queue_offset = 1)"
        )
        connection.execute(_ONE_FAILED, {"retries": retries, "dead": dead})

    def value(found: Scrape, name: str, group: str) -> float | None:
        labels = {"messaging_consumer_group_name": group, "messaging_destination_name": "t"}
        return found.values.get(name, {}).get(frozenset(labels.items()))

    found = until(lambda: now if value(now := scrape(scraped.metrics), "txmsg_group_lag_seconds", waits) else None)
    age_s = value(found, "txmsg_group_lag_seconds", waits)
    assert age_s is not None
    assert age_s > 3000
    assert value(found, "txmsg_group_retrying_messages", retries) == 1
    assert value(found, "txmsg_group_dead_letters", dead) == 1
    assert found.total("txmsg_group_dead_letters") == 1
    assert len(found.values["txmsg_group_lag_messages"]) == NAMED_MAX + 1
    # Counter series that disappear and return would be counted twice: these are always present.
    counted = found.values["txmsg_group_processed_messages_total"]
    assert {dict(labels)["messaging_consumer_group_name"] for labels in counted} == {
        OTHER,
        *(f"g{number + 1:05}" for number in range(NAMED_MAX)),
    }


def test_broker_without_its_database_is_alive_not_ready_and_serves_the_last_metrics(
    scraped: Scraped, notify_url: str
) -> None:
    before = scraped.await_ready()
    with refusing_connections(notify_url):
        status, why = until(lambda: found if (found := got(scraped.metrics, "/readyz"))[0] == 503 else None)
        assert status == 503
        assert "cannot be reached" in why or "no leases" in why
        assert got(scraped.metrics, "/livez") == (200, "ok\n")
        found = until(lambda: now if (now := scrape(scraped.metrics)).value("txmsg_database_reachable") == 0 else None)
        assert found.value("txmsg_ready") == 0
        assert found.value("txmsg_lease_losses_total") > before.value("txmsg_lease_losses_total")
        assert found.value("txmsg_halves", state="new") == 0
    scraped.await_ready()


def test_a_scrape_is_answered_while_the_database_hangs(scraped: Scraped, notify_url: str) -> None:
    scraped.await_ready()
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("lock table txmsg.dead_letter in access exclusive mode")
        # Old enough to be read again, which hangs.
        found = until(lambda: now if age_of(now := scrape(scraped.metrics)) > FRESH_S + PATIENCE_S else None)
        assert found.value("txmsg_ready") == 1
    until(lambda: age_of(scrape(scraped.metrics)) < FRESH_S)


def age_of(found: Scrape) -> float:
    return found.value("txmsg_database_figures_age_seconds")


@contextmanager
def refusing_connections(url: str) -> Iterator[None]:
    """Make the database end all sessions and refuse new ones."""
    admin = make_url(url).set(database="postgres").render_as_string(hide_password=False)
    name = make_url(url).database
    with psycopg.connect(admin, autocommit=True, connect_timeout=10) as connection:
        connection.execute(f"alter database {name} allow_connections false".encode())
        try:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
            yield
        finally:
            connection.execute(f"alter database {name} allow_connections true".encode())


def test_a_drained_broker_is_not_ready(scraped: Scraped, start_broker: StartBroker) -> None:
    scraped.await_ready()
    start_broker()
    until(lambda: scrape(scraped.metrics).value("txmsg_brokers") == 2)
    [this] = [each for each in json_of("cluster", "show", "--broker", scraped.address)["brokers"]
              if each["address"] == scraped.address]  # fmt: skip
    said("cluster", "drain", this["id"], "--broker", scraped.address)
    _, why = until(lambda: found if (found := got(scraped.metrics, "/readyz"))[0] == 503 else None)
    assert why == "the broker is drained: it accepts no messages\n"
    assert scrape(scraped.metrics).value("txmsg_draining") == 1


def test_errors_are_counted_by_their_codes(start_broker: StartBroker) -> None:
    scraped = Scraped(start_broker, "--no-topic-auto-create")
    before = scraped.await_ready()
    with Producer(scraped.address, group="shop") as producer, pytest.raises(UnknownTopic):
        producer.send(Message("nobody", b"1"))
    rises(scraped.metrics, "txmsg_item_errors_total", since=before, error_type=UnknownTopic.code)
    said("group", "alter", "nobody", "--retries", "1", "--broker", scraped.address, status=1)
    rises(scraped.metrics, "txmsg_call_errors_total", since=before, error_type=UnknownGroup.code)


async def test_inaccessible_disk_has_no_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < (await figures._free_ratio(str(tmp_path)) or 0) <= 1

    def refused(directory: str) -> None:
        raise PermissionError(directory)

    monkeypatch.setattr(figures, "disk_usage", refused)
    assert await figures._free_ratio(str(tmp_path)) is None
