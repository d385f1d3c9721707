"""Places in a full table of connections, and timeouts of unauthenticated ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txmsg.errors import Overloaded
from txmsg.wire.table import SAY_AGAIN_S, ConnectionPlace, ConnectionTable, ConnectionTableBounds, network_of


class Bench:
    """A table, a clock, and the closed connections."""

    def __init__(self, bounds: ConnectionTableBounds) -> None:
        self.now = 0.0
        self.table = ConnectionTable("a server", bounds, clock=lambda: self.now)
        self.closed: dict[str, str] = {}

    def _close(self, name: str) -> Callable[[str], None]:
        def close(why: str) -> None:
            self.closed[name] = why

        return close

    def enter(self, name: str, host: str = "10.0.0.1") -> ConnectionPlace | None:
        return self.table.enter(host, self._close(name))

    def entered(self, name: str, host: str = "10.0.0.1") -> ConnectionPlace:
        place = self.enter(name, host)
        assert place is not None
        return place


def test_single_address_can_use_all_places_and_loses_its_oldest_unauthenticated_connection() -> None:
    bench = Bench(ConnectionTableBounds(connections=3, strangers=3))
    for name in "abcd":
        bench.entered(name)
    assert bench.closed == {"a": "others needed its place"}


def test_address_with_many_unauthenticated_connections_loses_them_down_to_its_share() -> None:
    bench = Bench(ConnectionTableBounds(connections=4, strangers=4))
    for name in "abcd":
        bench.entered(name, "10.6.6.6")
    bench.entered("other", "10.0.0.2")
    assert bench.closed == {"a": "others needed its place"}
    for number in range(10):
        bench.entered(f"flood {number}", "10.6.6.6")
    assert "other" not in bench.closed
    bench.entered("second", "10.0.0.2")
    assert not {"other", "second"} & bench.closed.keys()
    bench.entered("third", "10.0.0.2")  # each has its half now
    assert "other" in bench.closed


def test_oldest_unauthenticated_connection_is_closed_among_equal_addresses() -> None:
    bench = Bench(ConnectionTableBounds(connections=100, strangers=3))
    for number in range(5):
        bench.now = number
        bench.entered(str(number), f"10.0.0.{number}")
    assert list(bench.closed) == ["0", "1"]


@pytest.mark.parametrize("addresses", [1, 7, 2048])
def test_all_clients_reconnecting_at_once_keep_their_places(addresses: int) -> None:
    bench = Bench(ConnectionTableBounds(connections=4000, of_user=4000))
    places = []
    for batch in range(4):  # each is accepted before the greetings of the one before it are read
        places += [bench.entered(str(number), f"10.0.{number % addresses}.1") for number in range(512)]
        bench.now += 0.2 * batch
    assert not bench.closed
    for place in places:
        bench.table.know(place, "app")
    assert bench.table.known == 2048


def test_late_unauthenticated_connections_are_bounded_before_the_table_is_full() -> None:
    bench = Bench(ConnectionTableBounds(connections=100, strangers=3, young_s=1.0))
    for name in "abcd":
        bench.entered(name)
    assert not bench.closed
    bench.now = 1.0
    for name in "efgh":
        bench.entered(name)
    assert list(bench.closed) == list("abcd")
    for number in range(100):
        bench.entered(f"flood {number}", "10.6.6.6")
    assert len(bench.table) == 100  # full: the young lose, too, but of the address with most of them
    assert not {"e", "f", "g", "h"} & bench.closed.keys()


class Moment(float):
    """A time that counts how often it is read."""

    looks = 0

    def __neg__(self) -> float:
        Moment.looks += 1
        return -float(self)

    def __eq__(self, other: object) -> bool:
        Moment.looks += 1
        return float(self) == other

    def __lt__(self, other: float) -> bool:
        Moment.looks += 1
        return float(self) < float(other)

    __hash__ = float.__hash__


def test_new_connection_does_not_scan_every_address() -> None:
    now = 0.0
    table = ConnectionTable(
        "a server", ConnectionTableBounds(connections=4000, strangers=1000), clock=lambda: Moment(now)
    )
    for number in range(1000):
        table.enter(f"2001:db8:0:{number:x}::1", lambda _: None)
        now += 0.01
    Moment.looks = 0
    for number in range(1000):
        table.enter(f"2001:db8:1:{number:x}::1", lambda _: None)
        now += 0.01
    assert table.strangers == 1000
    assert Moment.looks < 1000 * 100


def test_short_unauthenticated_connections_leave_nothing_behind() -> None:
    bench = Bench(ConnectionTableBounds(connections=100, strangers=100))
    for number in range(10_000):
        bench.table.leave(bench.entered(str(number), f"10.0.{number % 200}.1"))
    places = [bench.entered(str(number), f"10.0.0.{number}") for number in range(3)]
    for place in places:
        bench.now += 1.0
        bench.table.renew(place)
    assert len(bench.table._ranks) < 100


def test_unauthenticated_connections_never_displace_authenticated_ones() -> None:
    bench = Bench(ConnectionTableBounds(connections=4, strangers=2, of_user=4))
    for name in "abc":
        bench.table.know(bench.entered(name), "app")
    for number in range(50):
        bench.enter(f"stranger {number}", f"10.0.{number}.1")
    assert bench.table.known == 3
    assert not {"a", "b", "c"} & bench.closed.keys()
    assert len(bench.table) <= 4


def test_a_full_table_has_a_reserve_for_administrators() -> None:
    bench = Bench(ConnectionTableBounds(connections=2, strangers=4, of_user=2, reserve=1))
    for name in "ab":
        bench.table.know(bench.entered(name), "app")
    place = bench.entered("c")
    with pytest.raises(Overloaded, match="2 connections, as many as it takes"):
        bench.table.know(place, "app")
    bench.table.leave(place)
    bench.table.know(bench.entered("ops"), "ops", is_admin=True)
    assert bench.enter("d") is None


def test_one_user_cannot_fill_the_table() -> None:
    bench = Bench(ConnectionTableBounds(connections=8))
    assert bench.table.bounds.of_user_max == 6
    places = [bench.entered(str(number)) for number in range(6)]
    for place in places:
        bench.table.know(place, "greedy")
    place = bench.entered("one more")
    with pytest.raises(Overloaded, match="user greedy has 6 connections"):
        bench.table.know(place, "greedy")
    bench.table.know(bench.entered("other"), "other")
    bench.table.leave(places[0])
    bench.table.know(place, "greedy")


def test_probe_is_served_among_idle_connections_of_its_address() -> None:
    bench = Bench(ConnectionTableBounds(connections=16, strangers=16))
    for number in range(16):
        bench.entered(str(number), "127.0.0.1")
    for number in range(16):
        probe = bench.entered(f"probe {number}", "127.0.0.1")
        bench.table.know(probe)
        bench.table.leave(probe)
    assert "0" in bench.closed
    assert not any(name.startswith("probe") for name in bench.closed)


def test_connection_with_a_finished_answer_is_displaced_before_one_being_answered() -> None:
    bench = Bench(ConnectionTableBounds(connections=2, strangers=2))
    first, second = bench.entered("first"), bench.entered("second")
    bench.table.know(first)
    bench.table.know(second)
    assert bench.enter("third") is None
    bench.table.forget_place(second)
    assert bench.enter("third")
    assert bench.closed == {"second": "others needed its place"}


def test_first_byte_and_greeting_have_timeouts() -> None:
    bench = Bench(ConnectionTableBounds(connections=9, first_byte_s=2.0, greeting_s=5.0))
    bench.entered("silent")
    slow, known = bench.entered("slow"), bench.entered("known")
    bench.table.spoken(slow)
    bench.table.know(known, "app")
    bench.now = 2.5
    bench.table.close_slow_strangers()
    assert bench.closed == {"silent": "it said nothing"}
    bench.now = 5.5
    bench.table.close_slow_strangers()
    assert bench.closed == {"silent": "it said nothing", "slow": "it did not greet"}
    assert (len(bench.table), bench.table.known) == (1, 1)
    bench.table.forget_place(known)
    bench.now = 8.0
    bench.table.close_slow_strangers()
    assert bench.closed["known"] == "it said nothing"
    assert not len(bench.table)


def test_a_full_table_is_logged_once_a_minute_with_the_count(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(ConnectionTableBounds(connections=1, strangers=1))
    bench.entered("a")
    for _ in range(10):
        bench.enter("b", "10.6.6.6")
        bench.enter("a", "10.6.6.6")
    [first] = caplog.records
    assert "a server has no room for all connections" in first.getMessage()
    bench.now = SAY_AGAIN_S
    bench.table.close_slow_strangers()
    assert len(caplog.records) == 2
    assert "19 were closed, 19 of them from 10.6.6.6" in caplog.records[1].getMessage()


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:0db8:0000:0000"),
        ("2001:db8::ffff:1", "2001:0db8:0000:0000"),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
        ("a local process", "a local process"),
    ],
)
def test_a_network_of_ipv6_is_one_address(host: str, network: str) -> None:
    assert network_of(host) == network
