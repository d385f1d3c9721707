"""Data of the MetaQ benchmarks: batches of JSON-like bodies; and Redis for comparison."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.topics import Flush, TopicSettings

QUEUES_PER_TOPIC: Final = 1000
APPENDS_PER_SYNC: Final = 100
"""Batches that one call appends to a synchronous topic, with one fdatasync."""
_STORED_AT_US: Final = 1_700_000_000_000_000
_REDIS_START_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Batches of one kind."""

    name: str
    size_bytes: int = 100
    count: int = 100
    """Messages in a batch."""
    compression: Compression = Compression.NONE
    flush: Flush = Flush.TIMED
    queues: int = 1

    @property
    def per_call(self) -> int:
        """Return the number of batches that one call appends."""
        return APPENDS_PER_SYNC if self.flush is Flush.SYNC else 1


def columns_of(case: Case) -> FrameColumns:
    """Return one batch. Its bodies compress about as well as an application's."""
    bodies = []
    for number in range(case.count):
        body = b""
        while len(body) < case.size_bytes:
            body += b'{"trade": %d, "buyer": "u%d", "cents": %d}' % (
                7_919 * number + len(body),
                number * number % 997,
                31 * number,
            )
        bodies.append(body[: case.size_bytes])
    return FrameColumns(bodies, [_STORED_AT_US])


def targets(case: Case) -> list[tuple[str, int]]:
    """Return the queues that a case appends to in turn."""
    return [(f"topic{number // QUEUES_PER_TOPIC}", number % QUEUES_PER_TOPIC) for number in range(case.queues)]


def appends(log: Log, case: Case) -> Iterator[Callable[[], None]]:
    """Yield calls, without end, each of which encodes and appends batches."""
    columns, queues = columns_of(case), targets(case)
    place = 0

    def call() -> None:
        nonlocal place
        batches = []
        for _ in range(case.per_call):
            topic, queue = queues[place % len(queues)]
            place += 1
            batches.append(Append(topic, queue, encode(columns, case.compression)))
        log.append(batches)

    while True:
        yield call


@contextmanager
def fresh_log(case: Case, directory: Path | None = None) -> Iterator[Log]:
    """Yield a log with one batch in each queue of the case; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-", dir=directory) as place:
        config = LogConfig(topic=TopicSettings(flush=case.flush, compression=case.compression))
        with Log(Path(place) / "log", config) as log:
            columns = columns_of(case)
            log.append([Append(topic, queue, encode(columns, case.compression)) for topic, queue in targets(case)])
            yield log


@contextmanager
def redis_streams(*options: str) -> Iterator[redis.Redis | None]:
    """Yield a private Redis with an append-only file; None, with a printed line, without redis-server."""
    path = shutil.which("redis-server")
    if path is None:
        print("redis-server is not on PATH, so Redis Streams are not measured (Debian: apt install redis-server)")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
        socket = f"{place}/redis.sock"
        settings = ["--port", "0", "--unixsocket", socket, "--dir", place, "--save", "", "--appendonly", "yes"]
        with subprocess.Popen([path, *settings, *options], stdout=subprocess.DEVNULL) as server:
            try:
                with redis.Redis(unix_socket_path=socket) as client:
                    for attempt in Retrying(
                        retry=retry_if_exception_type(redis.ConnectionError),
                        stop=stop_after_delay(_REDIS_START_S),
                        wait=wait_fixed(0.05),
                        reraise=True,
                    ):
                        with attempt:
                            client.ping()
                    yield client
            finally:
                server.terminate()


def xadd(client: redis.Redis, bodies: Sequence[bytes], batches: int) -> None:
    """Append so many batches to a stream, in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for _ in range(batches):
        for body in bodies:
            pipeline.xadd("stream", {"b": body})
    pipeline.execute()
