"""One process of a worker: runs an application until SIGTERM, and reports to the supervisor by its stdout.

A stop may come as several SIGTERMs: from the supervisor, and from systemd, which signals all processes of a unit. To
end a process at once, end the supervisor: by a second SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import IO, Any, Final

from txmsg.client.app.application import Txmsg
from txmsg.client.app.loading import load
from txmsg.client.app.worker.reports import series_of
from txmsg.errors import MisuseError
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.runtime import loops, signals
from txmsg.runtime.child import when_parent_is_gone
from txmsg.runtime.logs import log_to_stderr, name_process

_REPORT_S: Final = 1.0
_LEFT_ALONE: Final = 3
REFUSED: Final = 2
"""The exit status of a process that cannot run as it is asked to, and could not the next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOrders:
    """The supervisor's orders to a process."""

    name: str
    app: str
    groups: tuple[str, ...]
    concurrency: int | None
    drain_s: float
    log_level: str
    log_format: str

    def as_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_argument(cls, text: str) -> SupervisorOrders:
        values = json.loads(text)
        return cls(**values | {"groups": tuple(values["groups"])})


def main() -> None:
    """Run the application that the first argument orders."""
    orders = SupervisorOrders.of_argument(sys.argv[1])
    signals.take_repeats_as_one()
    when_parent_is_gone(_end_alone)
    with _reports_on_stdout() as reports:
        log_to_stderr(orders.log_level, orders.log_format)
        name_process(orders.name)
        try:
            app = load(orders.app)
            app.groups, app.concurrency, app.close_timeout_s = orders.groups, orders.concurrency, orders.drain_s
            if not app._chosen():
                raise MisuseError(f"the application {orders.app} has no subscriptions: declare one by @app.subscribe")
            loops.run_application(_run(app, reports))
        except MisuseError as exc:
            _say(reports, refused=str(exc))
            sys.exit(REFUSED)


def _end_alone() -> None:
    """End, since the supervisor is gone: in order, unless the end had begun; then the supervisor was killed to end it
    at once."""
    if signals.has_come():
        os._exit(_LEFT_ALONE)
    os.kill(os.getpid(), signal.SIGTERM)


def _reports_on_stdout() -> IO[str]:
    """Return the former stdout; from now on the application's prints go where its log goes."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return reports


def _say(reports: IO[str], **values: Any) -> None:
    reports.write(f"{json.dumps(values)}\n")
    reports.flush()


async def _run(app: Txmsg, reports: IO[str]) -> None:
    async def report() -> None:
        while True:
            _say(reports, series=_series(app))
            await asyncio.sleep(_REPORT_S)

    reporting: list[asyncio.Task[None]] = []

    def started() -> None:
        _say(reports, ready=True)
        reporting.append(asyncio.create_task(report()))

    try:
        await app.run_async(started=started)
    finally:
        for task in reporting:
            task.cancel()
        _say(reports, series=_series(app))


def _series(app: Txmsg) -> list[Any]:
    figures = Figures(ExportingProcess.APPLICATION)
    app._put_figures(figures)
    return series_of(figures)


if __name__ == "__main__":
    main()
