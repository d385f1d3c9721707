"""While its log or database is down or hangs, a tailer does not repeat earlier metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.binlog.tailers import Running, Table, await_equal, tailing
from tests.postgres_proxy import PostgresProxy
from tests.waiting import until
from txmsg.binlog.figures import figures_of, unready
from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.rows import RowBatch
from txmsg.binlog.tailer import TailerState
from txmsg.errors import BrokerUnavailable
from txmsg.metaq.location import open_log
from txmsg.metrics.counts import Histogram


class FaultyLog:
    """A log that is down, refuses appends, or hangs, as the test chooses."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.is_away = self.is_full = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def open(self) -> LogSink:
        if self.is_away:
            raise BrokerUnavailable("the log is away")
        sink = LogSink(open_log(self._root, append=True), str(self._root))
        append = sink.append

        def appending(batches: Sequence[RowBatch]) -> None:
            if self.is_away or self.is_full:
                raise BrokerUnavailable("the log takes nothing")
            self.goes_on.wait()
            append(batches)

        sink.append = appending  # type: ignore[method-assign]
        return sink


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FaultyLog]:
    log = FaultyLog(tmp_path)
    yield log
    log.goes_on.set()


def told(running: Running, name: str) -> float | None:
    """Return the value of a metric; None if it has no series."""
    figures = figures_of(running.tailer)
    [values] = [values for metric, values in figures.series() if metric.name == f"txmsg_mirror_{name}"]
    value = next(iter(values.values()), None)
    assert not isinstance(value, Histogram)
    return value


def lag_s(running: Running) -> float:
    lag_s = told(running, "lag_seconds")
    assert lag_s is not None
    return lag_s


def await_growing_lag(running: Running, until_s: float = 0.5) -> None:
    """Return once the lag has grown, without ever shrinking, up to this value."""
    looks: list[float] = [0.0]
    until(lambda: looks.append(lag_s(running)) or looks[-1] > until_s)  # type: ignore[func-returns-value]
    assert looks == sorted(looks)


def await_mirrored(running: Running, table: Table, root: Path) -> None:
    await_equal(table, root, "t")
    until(lambda: lag_s(running) == 0.0)
    assert (told(running, "tailing"), told(running, "lag_messages"), unready(running.tailer)) == (1, 0, "")


@contextmanager
def interrupted(running: Running) -> Iterator[None]:
    """Check the metrics of a tailer during an outage; the block runs before its end."""
    until(lambda: running.tailer.state is TailerState.INTERRUPTED)
    assert "it tries again" in unready(running.tailer)
    assert told(running, "tailing") == 0
    assert told(running, "lag_messages") is None
    await_growing_lag(running)
    yield


def test_lag_grows_and_retained_wal_is_reported_while_the_log_is_down(
    table: Table, tmp_path: Path, log: FaultyLog
) -> None:
    table.add("t", 5)
    with tailing(table.url, tmp_path, sink=log.open) as running:
        await_mirrored(running, table, tmp_path)
        log.is_away = True
        table.add("t", 5)
        with interrupted(running):
            before = until(lambda: told(running, "kept_bytes"))
            table.add("t", 5)
            until(lambda: (told(running, "kept_bytes") or 0) > before)
            until(lambda: (told(running, "lag_bytes") or 0) > 0)
        log.is_away = False
        await_mirrored(running, table, tmp_path)


def test_lag_grows_while_the_log_opens_and_refuses_appends(table: Table, tmp_path: Path, log: FaultyLog) -> None:
    table.add("t", 5)
    with tailing(table.url, tmp_path, sink=log.open, wait_s_max=0.05) as running:
        await_mirrored(running, table, tmp_path)
        log.is_full = True
        table.add("t", 5)
        until(lambda: TailerState.INTERRUPTED in running.states)
        await_growing_lag(running, until_s=1.5)
        assert running.states.count(TailerState.INTERRUPTED) > 2
        log.is_full = False
        await_mirrored(running, table, tmp_path)


def test_the_lag_grows_while_the_log_hangs(table: Table, tmp_path: Path, log: FaultyLog) -> None:
    table.add("t", 5)
    with tailing(table.url, tmp_path, sink=log.open) as running:
        await_mirrored(running, table, tmp_path)
        log.goes_on.clear()
        table.add("t", 5)
        until(lambda: lag_s(running) > 0)
        await_growing_lag(running)
        log.goes_on.set()
        await_mirrored(running, table, tmp_path)


def test_lag_grows_and_byte_metrics_are_absent_while_the_database_is_down(table: Table, tmp_path: Path) -> None:
    table.add("t", 5)
    with PostgresProxy(table.url) as proxy, tailing(proxy.url, tmp_path) as running:
        await_mirrored(running, table, tmp_path)
        until(lambda: told(running, "kept_bytes") is not None)
        proxy.refuse()
        proxy.cut_all()
        with interrupted(running):
            until(lambda: {told(running, name) for name in ("kept_bytes", "lag_bytes", "safe_bytes")} == {None})
        proxy.accept()
        await_mirrored(running, table, tmp_path)


def test_tailer_taking_over_while_the_log_is_down_is_not_ready_and_its_lag_grows(
    table: Table, tmp_path: Path, log: FaultyLog
) -> None:
    table.add("t", 5)
    with tailing(table.url, tmp_path) as first:
        second = Running(table.url, tmp_path, sink=log.open)
        second.start(ready=False)
        second.await_state(TailerState.STANDING_BY)
        log.is_away = True
        first.stop()
        with interrupted(second):
            table.add("t", 5)
        log.is_away = False
        await_mirrored(second, table, tmp_path)
        second.stop()


def test_tailer_taking_over_waits_while_the_disk_is_full(table: Table, tmp_path: Path) -> None:
    opened: list[Exception] = [OSError(28, "No space left on device")]

    def open_sink() -> LogSink:
        if opened and second.tailer.state is not TailerState.STANDING_BY:
            raise opened.pop()
        return LogSink(open_log(tmp_path, append=True), str(tmp_path))

    table.add("t", 5)
    with tailing(table.url, tmp_path) as first:
        second = Running(table.url, tmp_path, sink=open_sink)
        second.start(ready=False)
        second.await_state(TailerState.STANDING_BY)
        first.stop()
        second.await_state(TailerState.TAILING)
        assert not opened
        await_mirrored(second, table, tmp_path)
        second.stop()


def test_standby_tailer_has_no_lag_metric(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path) as first:
        second = Running(table.url, tmp_path)
        second.start(ready=False)
        second.await_state(TailerState.STANDING_BY)
        assert (told(second, "tailing"), told(second, "lag_seconds"), unready(second.tailer)) == (0, None, "")
        first.stop()
        second.await_state(TailerState.TAILING)
        until(lambda: lag_s(second) == 0.0)
        second.stop()
