"""The supervisor of a worker: starts its processes, watches them, and ends them. Knows them by their reports."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from txmsg.checks.brokers import WORKER_PROCESSES
from txmsg.client.app.worker.changes import Changes
from txmsg.client.app.worker.process import SupervisorOrders
from txmsg.client.app.worker.reports import Series, counters_in, put_all, together
from txmsg.errors import MisuseError
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.runtime.child import Child, spawn_application
from txmsg.runtime.logs import EventLog
from txmsg.runtime.restarts import Restarts

_log = EventLog(__name__)

_LOOK_S: Final = 0.1
_LOOK_AT_MEMORY_S: Final = 1.0
_LOOK_AT_FILES_S: Final = 0.5
_GRACE_S: Final = 20.0
"""Seconds beyond the time of its handlers that a process may take to end before it is killed: for hooks, and messages
to send."""
_READ_S_MAX: Final = 1.0
"""Seconds that the end of a process may hold up the others while another program still writes to its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The configuration of a worker."""

    app: str
    processes: int
    groups: tuple[str, ...] = ()
    concurrency: int | None = None
    """Concurrency of each subscription; None: as the application says."""
    drain_s: float = 30.0
    memory_limit_bytes: int | None = None
    """Memory of a process and its children, at most; above, it is replaced."""
    reload: Path | None = None
    """The directory whose changes replace all processes."""
    log_level: str = "info"
    log_format: str = "text"


@dataclass(eq=False, slots=True)
class _ProcessSlot:
    """The place of one of the planned processes; its predecessors may still be ending."""

    name: str
    restarts: Restarts = field(default_factory=Restarts)
    worker: _Worker | None = None
    start_at: float = 0.0
    """Clock time at which the next process is started, while there is none."""
    replace_at: float = 0.0
    """Clock time before which a process that is too large is not replaced: if all are, the limit is too low."""


class Supervisor:
    """Keeps as many processes running as planned. `step` looks once; `run` waits and repeats.

    log: gets each line of their logs, with the name of the process.
    """

    def __init__(self, plan: WorkerPlan, log: Callable[[str, str], object]) -> None:
        self._plan = plan
        self._log = log
        self._places = [_ProcessSlot(f"worker-{n}") for n in range(1, plan.processes + 1)]
        self._ending: list[_Worker] = []
        self._changes = None if plan.reload is None else Changes(plan.reload)
        self._look_at_files_at = self._look_at_memory_at = 0.0
        self._lock = threading.Lock()  # of what a worker has counted, and of this, which takes it over
        self._counted: list[Series] = []
        """Counts of processes that are gone."""
        self._restart_count = 0
        self._was_ready = False

    # ---- what others ask, on any thread

    def unready(self) -> str:
        """Return the reason why the worker is not ready; "" if all processes are."""
        workers = [(place.name, place.worker) for place in self._places]
        waiting = [name for name, worker in workers if worker is None or not worker.is_ready]
        return WORKER_PROCESSES.found(names=", ".join(waiting)).what if waiting else ""

    def figures(self) -> Figures:
        """Return its own figures, and the sums of all processes' counts."""
        figures = Figures(ExportingProcess.WORKER)
        # In this order: one that moves meanwhile, from its place to those that end, is met at least once.
        workers = dict.fromkeys([*self._working(), *self._ending])
        with self._lock:
            put_all(figures, [self._counted, *(worker.series for worker in workers)])
        figures.put("txmsg_ready", not self.unready())
        figures.put("txmsg_worker_processes", len(workers))
        figures.put("txmsg_worker_restarts_total", self._restart_count)
        return figures

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, except those that are ending."""
        return [worker.child.pid for worker in self._working()]

    def _working(self) -> list[_Worker]:
        workers = [place.worker for place in self._places]
        return [worker for worker in workers if worker is not None]

    # ---- life

    def run(self, stop: threading.Event, ready: Callable[[], object]) -> None:
        """Run until `stop` is set, then end all processes. ready: called once, when all are ready. Raises
        MisuseError."""
        try:
            while not stop.is_set():
                self.step(time.monotonic())
                if not self._was_ready and not self.unready():
                    self._was_ready = True
                    ready()
                stop.wait(_LOOK_S)
        finally:
            self.close()

    def step(self, now: float) -> None:
        """Start processes that are due, and check the running ones. Raises MisuseError if the application cannot
        run."""
        for place in self._places:
            if place.worker is None and now >= place.start_at:
                self._start(place, now)
            elif place.worker is not None and place.worker.child.returncode is not None:
                self._ended(place, place.worker, now)
        self._look_at_memory(now)
        self._look_at_files(now)
        self._look_at_ending(now)

    def close(self) -> None:
        """End all processes in order, at the same time; kill those that do not end."""
        for place in self._places:
            if place.worker is not None:
                self._end_worker(place.worker, time.monotonic())
                place.worker = None
        while self._ending:
            self._look_at_ending(time.monotonic())
            time.sleep(_LOOK_S if self._ending else 0)

    def _start(self, place: _ProcessSlot, now: float) -> None:
        """Start a process, or set the time of the next attempt: there may be too many processes, or too little
        memory."""
        try:
            place.worker = self._started(place, now)
        except OSError as exc:
            delay_s = place.restarts.delay_s(0.0)
            place.worker, place.start_at = None, now + delay_s
            _log.error(
                "worker.not_started",
                "%(worker)s cannot be started (%(error)s); it is tried again in %(delay_s)g s",
                worker=place.name,
                error=exc,
                delay_s=delay_s,
            )

    def _started(self, place: _ProcessSlot, now: float) -> _Worker:
        plan = self._plan
        orders = SupervisorOrders(
            name=place.name,
            app=plan.app,
            groups=plan.groups,
            concurrency=plan.concurrency,
            drain_s=plan.drain_s,
            log_level=plan.log_level,
            log_format=plan.log_format,
        )
        return _Worker(orders, now, self._log)

    def _ended(self, place: _ProcessSlot, worker: _Worker, now: float) -> None:
        """Handle a process that ended by itself."""
        ending = worker.child.ending
        self._collect(worker)
        place.worker = None
        if worker.refusal and not self._was_ready:
            raise MisuseError(worker.refusal)
        delay_s = place.restarts.delay_s(now - worker.started_at)
        place.start_at = now + delay_s
        self._restart_count += 1
        _log.error(
            "worker.ended",
            "%(worker)s ended %(ending)s after %(ran_s)d s%(why)s; the next one starts in %(delay_s)g s",
            worker=place.name,
            ending=ending,
            ran_s=now - worker.started_at,
            why=f": {worker.refusal}" if worker.refusal else "",
            delay_s=delay_s,
        )

    # ---- replacing

    def _look_at_memory(self, now: float) -> None:
        limit_bytes = self._plan.memory_limit_bytes
        if limit_bytes is None or now < self._look_at_memory_at:
            return
        self._look_at_memory_at = now + _LOOK_AT_MEMORY_S
        for place in self._places:
            if place.worker is None or not place.worker.is_ready or now < place.replace_at:
                continue
            used_bytes = memory_of(place.worker.child.pid)
            if used_bytes > limit_bytes:
                self._restart_count += 1
                _log.warning(
                    "worker.too_large",
                    "%(worker)s has %(used_bytes)d bytes of memory, more than %(limit_bytes)d: it finishes what it "
                    "handles, and another one takes its place",
                    worker=place.name,
                    used_bytes=used_bytes,
                    limit_bytes=limit_bytes,
                )
                place.replace_at = now + place.restarts.delay_s(now - place.worker.started_at)
                self._replace(place, now)

    def _look_at_files(self, now: float) -> None:
        if self._changes is None or now < self._look_at_files_at:
            return
        self._look_at_files_at = now + _LOOK_AT_FILES_S
        if (changed := self._changes.since_last()) is not None:
            _log.info("worker.reloads", "%(file)s has changed: all processes are replaced", file=changed)
            for place in self._places:
                place.restarts, place.start_at = Restarts(), now
                self._replace(place, now)

    def _replace(self, place: _ProcessSlot, now: float) -> None:
        if place.worker is not None:
            self._end_worker(place.worker, now)
        self._start(place, now)

    def _end_worker(self, worker: _Worker, now: float) -> None:
        worker.child.send_signal(signal.SIGTERM)
        worker.kill_at = now + self._plan.drain_s + _GRACE_S
        self._ending.append(worker)

    def _look_at_ending(self, now: float) -> None:
        for worker in list(self._ending):
            is_late = now >= worker.kill_at
            if is_late:
                _log.error(
                    "worker.killed",
                    "%(worker)s did not end within --drain and %(grace_s)g s, and is killed",
                    worker=worker.name,
                    grace_s=_GRACE_S,
                )
            if is_late or worker.child.returncode is not None:
                self._collect(worker)
                self._ending.remove(worker)

    def _collect(self, worker: _Worker) -> None:
        """Release a process, its children and its pipes. Its counts are kept."""
        worker.child.kill()
        # A program that a handler started in a session of its own may hold the pipes: its lines are read meanwhile.
        worker.child.stop(timeout_s=_READ_S_MAX)
        with self._lock:
            # Added and cleared under one lock: `figures`, on another thread, must find each count exactly once, or a
            # counter would jump up and fall back.
            self._counted = together([self._counted, counters_in(worker.series)])
            worker.series = []


class _Worker:
    """A process, and its reports."""

    def __init__(self, orders: SupervisorOrders, now: float, log: Callable[[str, str], object]) -> None:
        self.name = orders.name
        self._log = log
        self.started_at = now
        self.kill_at = 0.0
        self.is_ready = False
        self.refusal = ""
        """The reason why it cannot run; reported before it ends with REFUSED."""
        self.series: list[Series] = []
        self.child = Child(
            orders.name,
            ["txmsg.client.app.worker.process", orders.as_argument()],
            log=lambda line: log(orders.name, line),
            on_line=self._hear,
            start=spawn_application,
        )

    def _hear(self, line: str) -> None:
        """Read a report. Called on the thread of the child's output."""
        try:
            said: dict[str, Any] = dict(json.loads(line))
        except (ValueError, TypeError):  # printed before its stdout was the log, as by sitecustomize
            self._log(self.name, line)
            return
        self.is_ready = said.get("ready", self.is_ready)
        self.series = said.get("series", self.series)
        self.refusal = said.get("refused", self.refusal)


def memory_of(pid: int) -> int:
    """Return the bytes of memory of a process and its children; 0 if it has gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0
