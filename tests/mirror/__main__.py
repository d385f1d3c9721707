"""Mirrors the registration demo and many messages by a randomly killed tailer; then compares log and table.

Exit status 1: they are not equal.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.broker_process import BrokerProcess
from tests.kafka_server import PrivateKafka
from tests.metaq.servers import MetaQProcess
from tests.mirror.killing import RandomKills
from tests.mirror.plant import PLANTS
from tests.mirror.tailer_process import TailerProcess, await_one
from txmsg.binlog.verifier.compare import verify
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncProducer
from txmsg.message import Message
from txmsg.ops.demo.registration import registration_run
from txmsg.ops.demo.registration.registration_run import RegistrationPlan

WAIT_S_MAX = 1800.0
PLANT_WAIT_S_MAX = 30.0
"""For a planted defect, which may stop queues for ever."""
DEMO = RegistrationPlan(users=60, crashes=4, slow_ms=50, down="social_import")
TOPICS = ("trade.created", "trade.paid", "trade.shipped")
STREAMS = 8
BATCH_MAX = 400
KILL_S = 2.5
"""Approximate seconds between kills."""
TRANSACTION_TIMEOUT_MS = 3000
"""Kafka's timeout, after which it aborts the open transaction of a suspended tailer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    sent: int
    """Messages sent besides the demo's."""
    messages: int
    """Messages by which log and table were compared, including those of the demo."""
    kills: int
    """Kills of the tailer."""
    server_kills: int
    pauses: int
    """Pauses of the tailer, each longer than Kafka's timeouts, while another one continued."""
    sent_per_s: float
    mirrored_s: float
    """Seconds from the first message sent until log and table were compared up to the last."""
    verified_per_s: float
    differing: int
    differences: list[str]
    demo_clean: bool

    @property
    def is_equal(self) -> bool:
        return not self.differing and self.messages >= self.sent and self.demo_clean


def messages_of(rng: random.Random, count: int) -> list[Message]:
    """Yield messages of all shapes: with and without keys, tags, headers and ordering keys, up to some KiB."""
    return [
        Message(
            rng.choice(TOPICS),
            rng.randbytes(rng.choice((0, 50, 100, 200, 1000))),
            key=f"trade-{rng.randrange(10**6)}" if rng.random() < 0.7 else None,
            tag=rng.choice(("card", "cash", None)),
            headers={"shop": str(rng.randrange(100))} if rng.random() < 0.3 else {},
            ordering_key=f"buyer-{rng.randrange(1000)}" if rng.random() < 0.3 else None,
        )
        for _ in range(count)
    ]


async def send_all(
    address: str, count: int, rng: random.Random, told: Callable[[int], None], *, within_s: float
) -> None:
    """Send so many messages in batches of all sizes, in some concurrent streams, spread over this time."""
    left = count
    prepared = messages_of(rng, 20_000)

    async def stream(producer: AsyncProducer) -> None:
        nonlocal left
        while left:
            size = min(left, rng.randint(1, BATCH_MAX))
            left -= size
            start = rng.randrange(len(prepared) - size)
            await producer.send_many(prepared[start : start + size])
            told(size)
            await asyncio.sleep(size * STREAMS * within_s / count)

    async with AsyncProducer(address, group="load", timeout_s=60) as producer, asyncio.TaskGroup() as streams:
        for _ in range(STREAMS):
            streams.create_task(stream(producer))


class Bar:
    """One progress bar for the whole run; also the audience of the demo."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def phase(self, title: str, steps: int) -> None:
        self._progress.reset(self._task, total=steps, description=title)

    def progress(self, steps: int, note: str) -> None:
        self._progress.update(self._task, completed=steps)

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def advance(self, steps: int) -> None:
        self._progress.advance(self._task, steps)


def run(
    directory: Path, *, messages: int, seed: int, into: str, kills_min: int, plant: str | None, bar: Bar
) -> Outcome:
    """Run once in an empty directory. into: a directory, a server, or kafka. plant: a defect of the tailers."""
    log: Path | str = directory / "metaq"
    with_server = into == "server"
    options: tuple[str, ...] = ()
    with EmbeddedPostgres(directory / "postgres") as server, ExitStack() as stack:
        storage = server.create_database("notify")  # where the demo's broker looks
        migrate.upgrade(storage)
        where: Path | str = log
        if into == "kafka":
            kafka = stack.enter_context(PrivateKafka(directory / "kafka"))
            where = log = kafka.address
            properties = directory / "kafka.properties"
            properties.write_text(
                "".join(f"{name}.timeout.ms={TRANSACTION_TIMEOUT_MS}\n" for name in ("transaction", "socket"))
            )
            options = ("--kafka-config", str(properties))
        if with_server:
            metaq = MetaQProcess(directory / "metaq", "--log-level", "warning", log=directory / "metaq.said")
            metaq.start()  # for its address, which it keeps
            metaq.stop()
            where = metaq.address
            stack.callback(metaq.kill)
        tailer, other = (
            stack.enter_context(TailerProcess(storage, where, *options, said=directory / name, plant=plant))
            for name in ("tailer.said", "other.said")
        )
        outlive = partial(outlived, storage, tailer, other) if into == "kafka" else None
        with ExitStack() as killers:
            killed = killers.enter_context(
                RandomKills(tailer, tailer.launch, seed, outlive=outlive, kills_min=kills_min)
            )
            if with_server:
                killed_server = killers.enter_context(RandomKills(metaq, metaq.start, seed + 1))
            demo = registration_run.run(DEMO, directory, bar)
            began_at = time.perf_counter()
            # Kills prove something only while there are messages to mirror.
            within_s = kills_min * KILL_S
            sent_s = load(storage, messages, seed, directory / "broker.log", bar, within_s=within_s)
        if with_server:
            metaq.start()
        tailer.start()
        bar.phase("comparing", 1)
        compared_at = time.perf_counter()
        wait_s = WAIT_S_MAX if plant is None else PLANT_WAIT_S_MAX
        report = verify(storage, log, wait_s=wait_s, progress=lambda done, _: bar.progress(done, ""))
        ended_at = time.perf_counter()
        tailer.stop()
    return Outcome(
        seed=seed,
        sent=messages,
        messages=report.messages,
        kills=killed.kills,
        server_kills=killed_server.kills if with_server else 0,
        pauses=killed.pauses,
        sent_per_s=round(messages / sent_s, 1),
        mirrored_s=round(ended_at - began_at, 1),
        verified_per_s=round(report.messages / (ended_at - compared_at), 1),
        differing=sum(report.differing.values()),
        differences=list(map(str, report.differences)),
        demo_clean=demo.clean,
    )


def outlived(storage: str, tailer: TailerProcess, other: TailerProcess, rng: random.Random) -> None:
    """Pause a tailer for longer than Kafka waits; another one continues, and is killed some time after it wakes.

    Its sessions are ended, as PostgreSQL does by itself after a minute of silence.
    """
    tailer.pause()
    try:
        time.sleep(1.5 * TRANSACTION_TIMEOUT_MS / 1000)
        with psycopg.connect(storage, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'txmsg tailer%'"
            )
        other.start()
        time.sleep(rng.uniform(0, 1))
    finally:
        tailer.resume()
    if rng.random() < 0.5:
        # Mostly the one that woke. If it was paused while it became the writer, it fences the other when it wakes, and
        # the first one continues.
        await_one("standing by", tailer, other)
        time.sleep(rng.uniform(0, 1))
    other.kill()


def load(storage: str, messages: int, seed: int, broker_log: Path, bar: Bar, *, within_s: float) -> float:
    """Send so many messages through a broker, spread over this time at least; return the duration."""
    bar.phase("sending", messages)
    broker = BrokerProcess(storage, "--log-level", "warning", log=broker_log)
    broker.start()
    try:
        began_at = time.perf_counter()
        asyncio.run(send_all(broker.address, messages, random.Random(seed), bar.advance, within_s=within_s))
        return time.perf_counter() - began_at
    finally:
        broker.stop()


@click.command(help=__doc__)
@click.option("--messages", default=1_000_000, show_default=True, help="Messages of a run, besides the demo's.")
@click.option("--runs", default=3, show_default=True, help="How often.")
@click.option("--seed", type=int, help="Of the first run; the next one has the next number. Default: random.")
@click.option(
    "--into",
    type=click.Choice(["directory", "server", "kafka"]),
    default="directory",
    show_default=True,
    help="Mirror to a directory, to a MetaQ server, which is killed, too, or to a Kafka; then tailers are paused, too.",
)
@click.option(
    "--kills", default=0, show_default=True, help="Kill the tailer so often at least; messages are sent all the time."
)
@click.option("--plant", type=click.Choice(list(PLANTS)), help="A defect that must be found; of the mirror into Kafka.")
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def main(
    *, messages: int, runs: int, seed: int | None, into: str, kills: int, plant: str | None, as_json: bool
) -> None:
    if plant is not None and into != "kafka":
        raise click.BadParameter("it is a defect of the mirror into Kafka: add --into kafka", param_hint="--plant")
    seed = secrets.randbelow(10**9) if seed is None else seed
    console = Console(stderr=as_json, highlight=False)
    outcomes = []
    for number in range(runs):
        with tempfile.TemporaryDirectory(prefix="txmsg-mirror-") as directory, bar_on(console) as bar:
            outcome = run(
                Path(directory),
                messages=messages,
                seed=seed + number,
                into=into,
                kills_min=kills,
                plant=plant,
                bar=bar,
            )
        outcomes.append(outcome)
        console.print(told(outcome))
        for difference in outcome.differences:
            console.print(f"  {difference}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in outcomes]))
    sys.exit(0 if all(each.is_equal for each in outcomes) else 1)


def told(outcome: Outcome) -> str:
    """Return a sentence about a run."""
    server = f", its server {outcome.server_kills} times" if outcome.server_kills else ""
    server += f", and paused {outcome.pauses} times while another one went on" if outcome.pauses else ""
    verdict = "equal" if outcome.is_equal else f"NOT equal: {outcome.differing} messages differ"
    return (
        f"seed {outcome.seed}: {outcome.messages:,} messages, sent at {outcome.sent_per_s:,.0f}/s; tailer killed "
        f"{outcome.kills} times{server}; mirrored and compared {outcome.mirrored_s:.1f} s after the first: {verdict}"
    )


@contextmanager
def bar_on(console: Console) -> Iterator[Bar]:
    columns = (TextColumn("{task.description:<33}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)


if __name__ == "__main__":
    main()
