"""Starts the databases, the log and all processes of the trade dashboard.

Databases: "notify" of the broker, "trades" of the service, "stock" of the stock consumer, "dashboard" of the figures.
`metaq/` is the log, unless it is in Kafka; `job/` the checkpoint of the Spark job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from txmsg.errors import BrokerUnavailable
from txmsg.metaq import LogAccess, LogQueue, open_log
from txmsg.ops.demo.stage import DemoStage
from txmsg.ops.demo.trades.load import Load
from txmsg.runtime.child import Child
from txmsg.runtime.logs import EventLog

TOPIC: Final = "trade.order"
_EXAMPLE: Final = "txmsg.ops.demo.examples.trade_dashboard"

_log = EventLog(__name__)


class TradeStage(DemoStage):
    """All processes but the service, which `start_service` starts when the others are ready: it begins the load.

    log: the address of a log in Kafka, whose topics are made; default is a log in the directory. kafka_jars: the
    directory of Spark's source for Kafka; default: Spark gets it.
    """

    def __init__(
        self,
        directory: Path,
        load: Load,
        *,
        with_dashboard: bool = True,
        log: str | None = None,
        kafka_jars: Path | None = None,
    ) -> None:
        super().__init__(directory, "trades", "stock", "dashboard")
        self.log = log or str(directory / "metaq")
        self.access: LogAccess
        """The log, open when the tailer has made it."""
        self._logged = 0
        self._kafka_jars = ("--kafka-jars", str(kafka_jars)) if kafka_jars else ()
        self._load = (str(load.rate), str(load.seconds), str(load.seed))
        self._with_dashboard = with_dashboard

    def _set_up(self) -> None:
        self.start_broker()
        self.start_tailer(self.log).wait_ready()  # it makes the log, which the job reads
        self.access = self._exits.enter_context(open_log(self.log))
        stock = {"STOCK_DATABASE_URL": self.sqlalchemy_url("stock")}
        self.start("stock", f"{__package__}.run_stock", *self._load, ready="consuming ", **stock)
        results = ("--results", self.url("dashboard"))
        if self._with_dashboard:
            log = ("--metaq", self.log, *self._kafka_jars, "--checkpoint", str(self.directory / "job"))
            self.start_program("spark", f"{_EXAMPLE}.job", *log, *results, ready="counting ")
            self.start_page(f"{_EXAMPLE}.page", *results)
        self.run("tables", f"{_EXAMPLE}.service", **self._service_env())
        self.await_ready()

    def start_service(self) -> Child:
        """Begin the load, or continue it after the process was killed."""
        before = self.children.get("trade_service")
        began_at = (before.address,) if before is not None and before.is_ready else ()
        program = (f"{__package__}.run_service", *self._load, *began_at)
        return self.start("trade_service", *program, ready="trading since ", **self._service_env())

    def restart(self, name: str) -> Child:
        return self.start_service() if name == "trade_service" else super().restart(name)

    def _service_env(self) -> dict[str, str]:
        return {"TRADES_DATABASE_URL": self.sqlalchemy_url("trades")}

    def logged(self) -> int:
        """Return the number of messages in the log; the last one while it does not answer."""
        try:
            queues = [LogQueue(TOPIC, number) for number in self.access.topics().get(TOPIC, [])]
            self._logged = sum(kept.end for kept in self.access.ranges(queues).values())
        except BrokerUnavailable as exc:
            _log.info("demo.log_away", "the log does not answer: %(error)s", error=exc)
        return self._logged
