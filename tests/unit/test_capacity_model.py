"""The resources that a load needs, computed from invented costs, so that every answer can be checked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity import LOADS
from benchmarks.capacity_model import (
    Cost,
    Costs,
    Load,
    Machine,
    Part,
    Plan,
    Row,
    TooManyClients,
    Work,
    costs_of,
    plan,
)
from benchmarks.capacity_report import markdown

ROOT = Path(__file__).parents[2]
MACHINE = Machine(cores=4, disk_bytes_per_s=1e9, disk_bytes=1e12, network_bytes_per_s=1e9, filled=0.5)
COSTS: Costs = {
    Work.TRANSACTION: {
        Part.PRODUCER: Cost(core_us=30),
        Part.BROKER: Cost(core_us=10, in_bytes=300),
        Part.DATABASE: Cost(core_us=20, in_bytes=500, wal_bytes=1000, kept_bytes=500),
    },
    Work.ALONE: {Part.BROKER: Cost(core_us=210, in_bytes=500), Part.DATABASE: Cost(core_us=90)},
    Work.DELIVERY: {Part.BROKER: Cost(core_us=8), Part.DATABASE: Cost(core_us=2)},
    Work.DELIVERED_SINGLY: {Part.BROKER: Cost(core_us=208)},
    Work.ATTACHED: {Part.BROKER: Cost(core_us=50)},
    Work.WAITING: {Part.BROKER: Cost(core_us=200)},
    Work.UPKEEP: {Part.BROKER: Cost(core_us=10_000), Part.DATABASE: Cost(core_us=1_000)},
    Work.MIRROR: {
        Part.DATABASE: Cost(core_us=25),
        Part.TAILER: Cost(core_us=10),
        Part.LOG: Cost(core_us=5, kept_bytes=300),
    },
    Work.SERVE: {Part.LOG: Cost(core_us=1, out_bytes=300), Part.READER: Cost(core_us=0.5)},
}
LOAD = Load(name="a load", transactions_per_s=100_000, producers=1, call_s=0.01)


def bottleneck_of(found: Plan) -> tuple[Part, str, object]:
    first = found.needs[0]
    return first.part, first.of, first.shards


def need_of(found: Plan, part: Part, of: str) -> float:
    return next(each.shards for each in found.needs if (each.part, each.of) == (part, of))


def row_of(found: Plan, part: Part) -> Row:
    return next(each for each in found.rows if each.part is part)


def test_the_bottleneck_is_the_resource_that_is_used_up_first() -> None:
    found = plan(COSTS, LOAD, MACHINE)

    # 100,000/s of 20 us are 2 cores of 4, which are used by half; 1,500 B each are 150 MB/s of 500.
    assert bottleneck_of(found) == (Part.DATABASE, "cores", pytest.approx(1.0))
    assert need_of(found, Part.DATABASE, "disk speed") == pytest.approx(0.3)
    assert found.shards == 1


def test_ten_times_the_load_needs_ten_times_as_much() -> None:
    small = plan(COSTS, LOAD, MACHINE)

    large = plan(COSTS, replace(LOAD, transactions_per_s=1_000_000), MACHINE)

    assert [need.shards for need in large.needs] == pytest.approx([10 * need.shards for need in small.needs])
    assert large.shards == 10


def test_retained_messages_use_disk_and_no_cores() -> None:
    found = plan(COSTS, replace(LOAD, kept=10e9), MACHINE)

    assert bottleneck_of(found) == (Part.DATABASE, "disk space", pytest.approx(10e9 * 500 / 0.5e12))
    assert row_of(found, Part.DATABASE).keeps_bytes == 5e12
    assert need_of(found, Part.DATABASE, "cores") == pytest.approx(1.0)


def test_calls_of_many_processes_cost_brokers_more_than_batched_calls_of_one() -> None:
    one = plan(COSTS, LOAD, MACHINE)
    assert LOAD.items_per_request == 1_000

    many = plan(COSTS, replace(LOAD, producers=5_000), MACHINE)

    assert row_of(one, Part.BROKER).processes == 3  # slightly more than a core, used by half; and idle clients
    assert row_of(many, Part.BROKER).processes == 88  # 200 us more for each; and 0.26 of each core for idle clients
    assert row_of(many, Part.DATABASE).takes.core_us > row_of(one, Part.DATABASE).takes.core_us  # more brokers' upkeep
    assert need_of(many, Part.DATABASE, "cores") == need_of(one, Part.DATABASE, "cores")


def test_a_backlog_needs_fewer_replies_than_single_messages() -> None:
    load = replace(LOAD, deliveries_per_s=50_000, consumers=100, call_s=0.001)

    live = plan(COSTS, load, MACHINE)
    backlogged = plan(COSTS, replace(load, is_backlogged=True), MACHINE)

    # 50,000 replies of 200 us are 10 cores; an eighth of that is 1.25. Beside them: 1.4 cores for messages, 0.2 for
    # requests, and of each broker 0.01 for itself and 0.02 for the consumers that wait there.
    assert live.of_brokers == pytest.approx({"messages": 1.4, "calls": 10.2, "idle clients": 0.75}, abs=0.01)
    assert backlogged.of_brokers == pytest.approx({"messages": 1.4, "calls": 1.45, "idle clients": 0.21}, abs=0.01)
    assert row_of(live, Part.BROKER).processes == 25
    assert row_of(backlogged, Part.BROKER).processes == 7


def test_too_many_idle_clients_are_refused() -> None:
    load = replace(LOAD, deliveries_per_s=1.0)
    plan(COSTS, replace(load, consumers=2_400), MACHINE)

    with pytest.raises(TooManyClients, match=r"3,000 consumers that do nothing take 0\.61 of a core of every broker"):
        plan(COSTS, replace(load, consumers=3_000), MACHINE)


def test_brokers_of_many_shards_serve_only_the_clients_of_their_shard() -> None:
    load = replace(LOAD, transactions_per_s=500_000, deliveries_per_s=500_000, producers=100, consumers=100)

    everywhere = plan(COSTS, load, MACHINE)
    split = plan(COSTS, replace(load, is_split=True), MACHINE)

    assert everywhere.shards == split.shards == 6
    # 9 cores for messages and 2 for requests. Replies at 100/s on each line would take 2 cores of every broker, which
    # none has, so there are enough brokers for one reply per message: 100 cores. A sixth of the clients takes 0.33.
    assert everywhere.of_brokers["calls"] == pytest.approx(102, abs=0.1)
    assert split.of_brokers["calls"] < 50
    assert row_of(split, Part.BROKER).processes < row_of(everywhere, Part.BROKER).processes / 2


def test_a_mirror_is_bounded_by_its_one_decoding_core() -> None:
    found = plan(COSTS, replace(LOAD, is_mirrored=True), MACHINE)

    assert bottleneck_of(found) == (Part.DATABASE, "the one core that decodes its log", pytest.approx(5.0))
    assert found.shards == 5
    assert row_of(found, Part.TAILER).processes == 10  # one of each two stands by
    assert found.catch_up == pytest.approx(40_000 / 20_000)  # a core decodes 40,000/s, and 20,000/s come to each shard


def test_log_readers_reduce_the_catch_up_capacity_of_the_server() -> None:
    load = replace(LOAD, is_mirrored=True, log_reads_per_s=4_600_000)
    quick_tailer: Costs = {**COSTS, Work.MIRROR: {Part.LOG: COSTS[Work.MIRROR][Part.LOG]}}

    found = plan(quick_tailer, load, MACHINE)

    # 4.6 cores to serve and 0.5 to append are 10.2 servers filled by half.
    assert bottleneck_of(found) == (Part.LOG, "its one core", pytest.approx(10.2))
    assert found.shards == 11
    assert found.catch_up == pytest.approx((1 - 4.6 / 11) / 5e-6 / (100_000 / 11))


def test_a_log_alone_needs_no_database() -> None:
    load = Load(name="a log", log_appends_per_s=200_000, log_reads_per_s=200_000, log_kept=1e9)

    found = plan(COSTS, load, MACHINE)

    assert [row.part for row in found.rows] == [Part.PRODUCER, Part.LOG, Part.READER]
    assert row_of(found, Part.LOG).processes == 3  # 1.2 cores, each filled by half
    assert row_of(found, Part.LOG).keeps_bytes == 300e9
    assert found.catch_up is None


def test_a_second_copy_doubles_databases_and_adds_network_traffic() -> None:
    one = plan(COSTS, LOAD, MACHINE)

    two = plan(COSTS, replace(LOAD, is_replicated=True), MACHINE)

    assert row_of(two, Part.DATABASE).machines == 2 * row_of(one, Part.DATABASE).machines
    assert need_of(one, Part.DATABASE, "network") == pytest.approx(0.1)  # 500 B in, of 1 GB/s filled by half
    assert need_of(two, Part.DATABASE, "network") == pytest.approx(0.2)  # 1,000 B out


def test_a_cost_table_with_an_unknown_row_is_refused() -> None:
    assert costs_of({"transaction": {"broker": {"core_us": 3.0}}}) == {
        Work.TRANSACTION: {Part.BROKER: Cost(core_us=3.0)}
    }
    with pytest.raises(ValueError, match="'a dream' is not a valid Work"):
        costs_of({"a dream": {}})


def test_the_scaling_page_matches_the_measured_table() -> None:
    table = json.loads((ROOT / "benchmarks/capacity.json").read_text())
    costs = costs_of(table["costs"])

    shown = markdown(table, [plan(costs, load, Machine()) for load in LOADS])

    how = "python -m benchmarks.capacity --table benchmarks/capacity.json --markdown"
    page = (ROOT / "docs/scaling.md").read_text()
    assert all(each in page for each in shown), f"the page is to have the tables that `{how}` prints"
