"""Cost of observability: transactions and deliveries per second with traces, and with metrics, beside neither.

Traces: producers and consumers have a Tracing, 1 % of all transactions are sampled, and their spans are exported in the
background. Metrics: the broker has --http-listen and is scraped each second, as are the producer and the consumer by a
ClientCollector. Each is measured by turns with a producer, a consumer and a broker that have nothing of it; all brokers
are on databases of one PostgreSQL. First all turns of sending; then each turn delivers everything to a new group, so
that it takes seconds, with a scrape in each. Claims (docs/performance.md): >= 0.9 with traces, >= 0.97 with metrics.
Exit status 1 if a message was lost or came twice, if nothing was recorded, or if nothing was scraped.

    python -m benchmarks.observability [--quick] [--json] [--turns N] [--seconds S]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.load import CONCURRENCY, WAIT_S_MAX, Arrivals, run
from benchmarks.surroundings import broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metrics import ClientCollector
from txmsg.metrics.collector import Counted
from txmsg.tracing import Tracing

TOPIC = "bench.watched"
BODY = b"x" * 200
CALLERS = 256
SAMPLED = 0.01
SCRAPE_S = 1.0


class Counting(SpanExporter):
    """A span exporter that counts spans."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


Watch = Callable[[Counted], asyncio.Task[None] | None]
"""Starts to observe a client while it works."""


def unwatched(_: Counted) -> None:
    """Observe nothing."""


class Scraper:
    """Reads the metrics of a broker and of a client each second."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/metrics"
        self.count = 0

    def __call__(self, client: Counted) -> asyncio.Task[None]:
        registry = CollectorRegistry()
        registry.register(ClientCollector(client))
        return asyncio.create_task(self._run(registry))

    async def _run(self, registry: CollectorRegistry) -> None:
        while True:
            await asyncio.to_thread(self._scrape)
            assert generate_latest(registry)
            await asyncio.sleep(SCRAPE_S)

    def _scrape(self) -> None:
        with urllib.request.urlopen(self._url, timeout=10) as reply:
            self.count += reply.read().count(b"\ntxmsg_") > 0


class Setup:
    """A broker, and the factory and observer of its clients."""

    def __init__(self, address: str, *, tracing: Tracing | None = None, watch: Watch = unwatched) -> None:
        self._address = address
        self._tracing = tracing
        self._watch = watch
        self._groups = itertools.count()
        self._sent = 0
        self.wrong = 0
        """Missing and duplicated messages."""

    def send(self, seconds: float) -> dict[str, float]:
        """Run transactions for so long."""
        return {"send": run(self._send(seconds))}

    def deliver(self) -> dict[str, float]:
        """Deliver all messages sent so far to a new group."""
        return {"deliver": run(self._deliver())}

    async def _send(self, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        message = Message(TOPIC, BODY)
        sent = 0

        async def call(producer: AsyncProducer, until: float) -> None:
            nonlocal sent
            while loop.time() < until:
                half = await producer.half([message])
                await producer.end(half, TransactionState.COMMIT)
                sent += 1

        async with AsyncProducer(self._address, group="bench", tracing=self._tracing) as producer:
            watching = self._watch(producer)
            began_at = loop.time()
            await asyncio.gather(*(call(producer, began_at + seconds) for _ in range(CALLERS)))
            took_s = loop.time() - began_at
            if watching is not None:
                watching.cancel()
        self._sent += sent
        return sent / took_s

    async def _deliver(self) -> float:
        arrivals = Arrivals()
        group = f"bench-{next(self._groups)}"
        consumer = AsyncConsumer(self._address, group=group, concurrency=CONCURRENCY, tracing=self._tracing)

        @consumer.subscribe(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            arrivals.note(message)

        with arrivals.expect(self._sent) as reached:
            async with consumer, asyncio.timeout(WAIT_S_MAX):
                watching = self._watch(consumer)
                await reached.wait()
                if watching is not None:
                    watching.cancel()
        self.wrong += self._sent - arrivals.count + arrivals.repeated
        return self._sent / (arrivals.ended_at - arrivals.began_at)


@contextmanager
def tracing_sampled(spans: Counting) -> Iterator[Tracing]:
    """Return a Tracing that samples as in production, and exports in the background."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(spans))
    yield Tracing(provider, sampled=SAMPLED)
    provider.shutdown()


def free_address() -> str:
    """Return a HOST:PORT that is free at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def main() -> int:
    """Measure, print, and check that every message arrived once."""
    parser = parser_of(__doc__, "fewer and shorter turns")
    parser.add_argument("--turns", type=int, help="of each comparison (default: 12; quick: 3)")
    parser.add_argument("--seconds", type=float, help="of transactions in each turn (default: 5; quick: 2)")
    options = parser.parse_args()
    turns = options.turns or (3 if options.quick else 12)
    seconds = options.seconds or (2.0 if options.quick else 5.0)
    spans, scraped_at = Counting(), free_address()
    compared: dict[str, dict[str, Compared]] = {"traces": {}, "metrics": {}}
    with (
        private_server() as server,
        broker_process(fresh_database(server, "plain")) as plain,
        broker_process(fresh_database(server, "traced")) as traced,
        broker_process(fresh_database(server, "scraped"), "--http-listen", scraped_at) as scraped,
        tracing_sampled(spans) as tracing,
        progress_of("observability", 4 * turns + 1) as step,
    ):
        scraper = Scraper(scraped_at)
        without = Setup(plain.address)
        sides = {"traces": Setup(traced.address, tracing=tracing), "metrics": Setup(scraped.address, watch=scraper)}
        for side in (without, *sides.values()):
            side.send(0.5)  # warms plans and caches
            side.deliver()
        step()
        for _ in range(turns):
            for name, side in sides.items():
                by_turns(partial(side.send, seconds), partial(without.send, seconds), compared[name])
                step()
        for _ in range(turns):
            for name, side in sides.items():
                by_turns(side.deliver, without.deliver, compared[name])
                step()
    wrong = sum(side.wrong for side in (without, *sides.values()))
    for name, by_work in compared.items():
        for work, each in by_work.items():
            print(
                f"{work:8s} with {name:8s} {each.rate:10,.0f}/s   without {each.reference:10,.0f}/s   "
                f"ratio {each.ratio:.3f}"
            )
    print(f"{spans.count:,} spans exported, {scraper.count} scrapes; {wrong} messages lost or repeated")
    if options.json:
        figures = {
            key: value
            for name, by_work in compared.items()
            for work, each in by_work.items()
            for key, value in each.figures(f"{work}_{name}").items()
        }
        print(json.dumps({**figures, "spans": spans.count, "scrapes": scraper.count, "wrong": wrong}))
    return 1 if wrong or not spans.count or not scraper.count else 0


if __name__ == "__main__":
    sys.exit(main())
