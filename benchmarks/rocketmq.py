"""RocketMQ's official client for Java against txmsg's gateway, and against Apache RocketMQ 5.5, in one run.

Targets: as many transactional messages per second as Apache RocketMQ with 64 and 256 callers, the p50 of one caller no
longer than there, and no call over its deadline of 3 s when 100 clients start at once. Both answer when a message is on
disk: RocketMQ with SYNC_FLUSH, its proxy in the broker's process as it recommends for one machine; txmsg with a broker,
a gateway and the embedded PostgreSQL. The client is the same, with its defaults; messages have 200 bytes. What is sent
while a consumer takes it must have come to it, or the exit status is 1.

Needs Java 17 and Maven, which brings RocketMQ once. The two are started by turns, and each is warmed up.

    python -m benchmarks.rocketmq [--quick] [--json] [--only NAME] [--seconds S] [--turns N]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.load import run, send
from benchmarks.rocketmq_server import rocketmq
from benchmarks.surroundings import (
    broker_process,
    gateway_process,
    notify_database,
    parser_of,
    progress_of,
)
from benchmarks.turns import Compared, by_turns
from tests.maven import jars
from tests.orphans import ENDING_WITH_PARENT

CLIENT = "org.apache.rocketmq:rocketmq-client-java:5.2.0"
PLAIN, HALVES, MANY = "plain", "transactional", "many"
TOPICS = {PLAIN: "NORMAL", HALVES: "TRANSACTION", MANY: "NORMAL"}
GROUP = "bench"
CLIENTS = 100
_LOAD = Path(__file__).parent / "rocketmq_client" / "Load.java"
_RUN_S_MAX = 1800.0
_DEADLINE = "DEADLINE_EXCEEDED"


class Play(NamedTuple):
    """A kind of work, and the number of threads of one producer."""

    kind: str
    callers: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.callers}".replace("+", "_")

    @property
    def word(self) -> str:
        return f"{self.kind}:{self.callers}:{self.kind.removesuffix('+consumer')}"


PLAYS = (  # those with a consumer first: it begins where a topic begins
    Play("plain+consumer", 64),
    Play("transactional+consumer", 64),
    Play("plain", 64),
    Play("transactional", 1),
    Play("transactional", 64),
    Play("transactional", 256),
)
WARM = Play("transactional+consumer", 64)

Line: TypeAlias = dict[str, float]
"""A line printed by Load.java for a play."""


@dataclass(slots=True)
class Found:
    """The results of all turns: for txmsg, and for RocketMQ."""

    rates: dict[str, Compared] = field(default_factory=dict)
    p50_ms: dict[str, Compared] = field(default_factory=dict)
    clients: dict[str, list[Line]] = field(default_factory=dict)
    """Of 100 concurrent clients, turn by turn."""
    missing: dict[str, float] = field(default_factory=dict)
    """Messages that were sent and did not arrive."""
    failed: dict[str, float] = field(default_factory=dict)
    """Failed calls of the plays, mostly by their deadline."""


class Run(NamedTuple):
    """The measurements of one of the two servers, and their destination."""

    seconds: float
    plays: tuple[Play, ...]
    has_clients: bool
    found: Found


@contextmanager
def gateway() -> Iterator[str]:
    """Yield the endpoints of a gateway before a broker on a fresh database."""
    with notify_database(None) as url, broker_process(url) as broker:
        for topic in TOPICS:
            run(send(broker.address, topic, 1))
        with gateway_process(broker.address) as address:
            yield address


@contextmanager
def apache() -> Iterator[str]:
    """Yield the endpoints of a RocketMQ."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with rocketmq(Path(directory), TOPICS, [GROUP]) as address:
            yield address


def load(endpoints: str, seconds: float, *words: str) -> tuple[list[Line], int]:
    """Return the output of Load.java, and the number of timeouts in its client's log."""
    client = jars("rocketmq-client-java-5.2.0", CLIENT)
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as home:
        command = ["java", "-Xmx1g", f"-Duser.home={home}", "-cp", f"{client}/*", str(_LOAD)]
        done = subprocess.run(
            [*ENDING_WITH_PARENT, *command, endpoints, str(seconds), *words],
            env={**os.environ, "HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_RUN_S_MAX,
            check=True,
        )
        logs = [path.read_text(errors="replace") for path in Path(home).rglob("*.log")]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines, sum(log.count(_DEADLINE) for log in logs)


def measure(name: str, started: Callable[[], AbstractContextManager[str]], measured: Run) -> dict[str, Line]:
    """Start one of the two servers, and run all plays."""
    found = measured.found
    with started() as endpoints:
        words = [play.word for play in (WARM, *measured.plays)]
        [_, *lines], _ = load(endpoints, measured.seconds, *words)
        if measured.has_clients:
            [starts, sends], late = load(endpoints, 0, f"clients:{CLIENTS}:{MANY}")
            each = {
                "starts_failed": starts["failed"],
                "start_s": starts["seconds"],
                "sends_failed": sends["failed"],
                "send_p99_ms": sends["p99_ms"],
                "deadlines_missed": late,
            }
            found.clients.setdefault(name, []).append(each)
            lines.append(sends)
    found.missing[name] = found.missing.get(name, 0) + sum(line["missing"] for line in lines)
    of_plays = dict(zip((play.name for play in measured.plays), lines, strict=False))
    found.failed[name] = found.failed.get(name, 0) + sum(line["failed"] for line in of_plays.values())
    return of_plays


def measure_both(measured: Run) -> None:
    """Run one turn of both."""
    lines: dict[str, dict[str, Line]] = {}

    def rates(name: str, started: Callable[[], AbstractContextManager[str]]) -> dict[str, float]:
        lines[name] = measure(name, started, measured)
        return {play: line["per_s"] for play, line in lines[name].items()}

    by_turns(lambda: rates("txmsg", gateway), lambda: rates("rocketmq", apache), measured.found.rates)
    for play, line in lines["txmsg"].items():
        each = measured.found.p50_ms.setdefault(play, Compared())
        each.rates.append(line["p50_ms"])
        each.reference_rates.append(lines["rocketmq"][play]["p50_ms"])


def figures(found: Found) -> dict[str, object]:
    """Return the figures for JSON."""
    told: dict[str, object] = {}
    for name, rate in found.rates.items():
        told |= rate.figures(name)
        p50_ms = found.p50_ms[name]
        told[f"{name}_p50_ms"] = round(p50_ms.rate, 2)
        told[f"{name}_reference_p50_ms"] = round(p50_ms.reference, 2)
    return {**told, "clients": found.clients, "missing": found.missing, "failed": found.failed}


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__, "one turn, 2 seconds each")
    parser.add_argument("--only", metavar="NAME", help="plays whose names contain this; clients: the 100 clients")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each play")
    parser.add_argument("--turns", type=int, metavar="N", help="turns")
    options = parser.parse_args()
    turns, seconds = options.turns or (1 if options.quick else 3), options.seconds or (2.0 if options.quick else 10.0)
    only = options.only or ""
    plays = tuple(play for play in PLAYS if only in play.name)
    found = Found()
    with progress_of("rocketmq", turns) as step:
        for _ in range(turns):
            measure_both(Run(seconds, plays, only in "clients", found))
            step()
    for name, rate in found.rates.items():
        p50_ms = found.p50_ms[name]
        print(
            f"{name:28}{rate.rate:8,.0f}/s, p50 {p50_ms.rate:6.1f} ms   RocketMQ {rate.reference:8,.0f}/s, "
            f"p50 {p50_ms.reference:6.1f} ms   ratio {rate.ratio:.2f}"
        )
    for name, each in found.clients.items():
        for line in each:
            told = ", ".join(f"{what} {value:g}" for what, value in line.items())
            print(f"{CLIENTS} clients at once, {name}: {told}")
    for name, missing in found.missing.items():
        print(f"{name}: {found.failed[name]:.0f} calls of producers failed, {missing:.0f} messages did not come")
    if options.json:
        print(json.dumps(figures(found)))
    return 1 if found.missing.get("txmsg") else 0


if __name__ == "__main__":
    sys.exit(main())
