"""Send and delivery rate with a backlog: 0, 1, 3 and 10 million messages waiting for a group.

Claims (docs/performance.md): with ten million waiting, both rates are >= 0.95 of those with none; ten million waiting
messages are consumed, each once and in the order of its queue, while the broker holds less than 500 MB.

The backlog is real: messages sent by a producer, for which a group that has begun the topic has not asked yet. At each
level, turns of sending to that topic and of delivering from it to that group alternate with the same work on a fresh
database with a broker of its own, on the same server. At the end the group consumes everything. The exit status is 1 if
a message did not come, or came twice or out of order.

    python -m benchmarks.backlog [--quick] [--json] [--curve FILE]
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.load import Arrivals, consume, run, send
from benchmarks.surroundings import Broker, broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.broker.embedded import EmbeddedPostgres

LEVELS = (0, 1_000_000, 3_000_000, 10_000_000)
LEVELS_QUICK = (0, 300_000, 1_000_000)
TOPIC, GROUP = "bench.backlog", "behind"
WATCH_INTERVAL_S = 0.25


@dataclass(slots=True)
class Setup:
    """A database with its broker, and the messages received by the group."""

    broker: Broker
    sent: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)

    @property
    def waiting(self) -> int:
        return self.sent - self.arrivals.count

    def send(self, count: int) -> float:
        self.sent += count
        return run(send(self.broker.address, TOPIC, count))

    def consume(self, count: int) -> float:
        return run(consume(self.broker.address, TOPIC, GROUP, count, self.arrivals))

    def turn(self, count: int) -> dict[str, float]:
        """Send so many messages and deliver as many: the backlog stays the same."""
        return {"send": self.send(count), "deliver": self.consume(min(count, self.waiting))}


@contextmanager
def fresh_setup(server: EmbeddedPostgres, name: str) -> Iterator[Setup]:
    """Yield a fresh database with a broker."""
    with broker_process(fresh_database(server, name)) as broker:
        yield Setup(broker)


class MemoryWatch:
    """Records the peak memory of a broker within its context."""

    def __init__(self, broker: Broker) -> None:
        self.rss_mib_max = 0.0
        self._broker = broker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch")

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_S):
            self.rss_mib_max = max(self.rss_mib_max, self._broker.rss_mib())


def analyze(url: str) -> None:
    """Do now what autovacuum would do during the next turns, and a checkpoint."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum (analyze) txmsg.message")
        connection.execute("checkpoint")


def draw(levels: Sequence[int], compared: Sequence[dict[str, Compared]], path: Path) -> None:
    """Draw rates by backlog, the reference dashed beside them; below, the ratio of the two."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    rates, ratios = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    millions = [level / 1e6 for level in levels]
    for name, colour in (("send", "tab:blue"), ("deliver", "tab:orange")):
        measured = [each[name] for each in compared]
        rates.plot(millions, [each.rate for each in measured], "o-", color=colour, label=name)
        rates.plot(
            millions,
            [each.reference for each in measured],
            "--",
            color=colour,
            alpha=0.6,
            label=f"{name}, none waiting, in the same minutes",
        )
        ratios.plot(millions, [each.ratio for each in measured], "o-", color=colour)
    rates.set(ylabel="messages per second", ylim=(0, None))
    rates.yaxis.set_major_formatter("{x:,.0f}")
    ratios.axhline(1, color="grey", linewidth=0.8)
    ratios.set(xlabel="messages waiting for the group (millions)", ylabel="ratio", ylim=(0, 1.2))
    for axes in (rates, ratios):
        axes.grid(visible=True, alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Measure, print, draw, and check that every message arrived once, in order."""
    parser = parser_of(__doc__, "up to one million, few turns")
    parser.add_argument("--curve", type=Path, default=Path("build/backlog.png"), help="the PNG (build/backlog.png)")
    parser.add_argument("--levels", type=int, nargs="+", metavar="N", help="messages waiting, from few to many")
    parser.add_argument("--turns", type=int, metavar="N", help="turns at each level")
    options = parser.parse_args()
    levels = options.levels or (LEVELS_QUICK if options.quick else LEVELS)
    turns = options.turns or (2 if options.quick else 11)
    count = max(1000, min(levels[-1] // 20, 100_000))
    compared: list[dict[str, Compared]] = []
    filled = 0.0
    with (
        private_server() as server,
        fresh_setup(server, "behind") as behind,
        progress_of("backlog", len(levels) * (turns + 1) + 1) as step,
    ):
        behind.turn(1)  # the group begins
        for level in levels:
            if level > behind.waiting:
                filled = behind.send(level - behind.waiting)
                analyze(server.url("behind"))
            step()
            found: dict[str, Compared] = {}
            with fresh_setup(server, "empty") as empty:
                for _ in range(turns):
                    by_turns(partial(behind.turn, count), partial(empty.turn, count), found)
                    step()
            compared.append(found)
        waiting = behind.waiting
        before_mib = behind.broker.rss_mib()
        with MemoryWatch(behind.broker) as memory:
            drained_per_s = behind.consume(waiting)
        step()
    arrivals = behind.arrivals
    wrong = arrivals.repeated + arrivals.out_of_order + arrivals.missing() + abs(behind.waiting)
    for level, found in zip(levels, compared, strict=True):
        for name, each in found.items():
            print(
                f"{level:12,d} waiting: {name:8}{each.rate:10,.0f}/s   "
                f"with none waiting {each.reference:10,.0f}/s   ratio {each.ratio:.3f}"
            )
    print(f"the backlog was sent at {filled:,.0f}/s")
    print(
        f"{waiting:,} waiting messages consumed: {drained_per_s:,.0f}/s; "
        f"the broker held {memory.rss_mib_max:,.0f} MiB at most, {before_mib:,.0f} MiB before"
    )
    print(
        f"{arrivals.count:,} of {behind.sent:,} came; {arrivals.repeated} twice, {arrivals.out_of_order} out of order, "
        f"{arrivals.missing()} passed over"
    )
    draw(levels, compared, options.curve)
    print(f"the curve is in {options.curve}")
    if options.json:
        figures = {
            level: {key: value for name, each in found.items() for key, value in each.figures(name).items()}
            for level, found in zip(levels, compared, strict=True)
        }
        print(
            json.dumps(
                {
                    "levels": figures,
                    "fill_per_s": round(filled, 1),
                    "drain_per_s": round(drained_per_s, 1),
                    "drained": waiting,
                    "broker_rss_mib_max": round(memory.rss_mib_max, 1),
                    "wrong": wrong,
                }
            )
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
