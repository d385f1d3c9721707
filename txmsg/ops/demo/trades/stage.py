"""The databases, the log and all processes of the trade dashboard. Knows how to start them, not why.

Databases: "notify" of the broker, "trades" of the service, "stock" of the stock consumer, "dashboard" of the figures.
`metaq/` is the log, unless it is in Kafka; `job/` what the Spark job knows of how far it is; `health.json` how the
parts are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from txmsg.errors import BrokerUnavailable
from txmsg.metaq import LogAccess, LogQueue, open_log
from txmsg.ops.demo.stage import DemoStage
from txmsg.ops.demo.trades.load import Load
from txmsg.runtime.child import Child
from txmsg.runtime.logs import EventLog
from txmsg.wire.listening import loopback

DATABASES: Final = ("notify", "trades", "stock", "dashboard")
TOPIC: Final = "trade.order"
_EXAMPLE: Final = "txmsg.ops.demo.examples.trade_dashboard"

_log = EventLog(__name__)


class TradeStage(DemoStage):
    """Everything but the service, which begins the load: `start_service` does when all else is ready.

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
        super().__init__(directory, *(database for database in DATABASES if database != "notify"))
        self.log = log or str(directory / "metaq")
        self.access: LogAccess
        """The log, open from when the tailer has made it."""
        self._logged = 0
        self._kafka_jars = ("--kafka-jars", str(kafka_jars)) if kafka_jars else ()
        self.health = directory / "health.json"
        self._load = (str(load.rate), str(load.seconds), str(load.seed))
        self._with_dashboard = with_dashboard
        self.starting: Mapping[str, Callable[[], Child]] = {
            "broker": self.start_broker,
            "tailer": self._start_tailer,
            "stock": self._start_stock,
            "trade_service": self.start_service,
            "spark": self._start_spark,
            "page": self._start_page,
        }
        """What starts each process, or starts it again after it was killed."""

    def _set_up(self) -> None:
        self.start_broker()
        self._start_tailer().wait_ready()  # it makes the log, which the job reads
        self.access = self._exits.enter_context(open_log(self.log))
        self._start_stock()
        service = f"{_EXAMPLE}.service"
        if self._with_dashboard:
            self._start_spark()
            self._start_page()
        self.run("tables", service, TRADES_DATABASE_URL=self.sqlalchemy_url("trades"))
        for child in self.children.values():
            child.wait_ready()

    # ---- processes

    def start_service(self) -> Child:
        """Begins the load, or goes on with it after the process was killed."""
        before = self.children.get("trade_service")
        began_at = (before.address,) if before is not None and before.is_ready else ()
        return self.start(
            "trade_service",
            f"{__package__}.run_service",
            *self._load,
            *began_at,
            ready="trading since ",
            TRADES_DATABASE_URL=self.sqlalchemy_url("trades"),
        )

    def _start_tailer(self) -> Child:
        options = ("--storage", self.url("notify"), "--metaq", self.log)
        return self.start_program("tailer", "txmsg.ops.cli.main", "tailer", "run", *options, ready="tailing ")

    def _start_stock(self) -> Child:
        return self.start(
            "stock",
            f"{__package__}.run_stock",
            *self._load,
            ready="consuming ",
            STOCK_DATABASE_URL=self.sqlalchemy_url("stock"),
        )

    def _start_spark(self) -> Child:
        where = ("--metaq", self.log, *self._kafka_jars, "--results", self.url("dashboard"))
        checkpoint = ("--checkpoint", str(self.directory / "job"))
        return self.start_program("spark", f"{_EXAMPLE}.job", *where, *checkpoint, ready="counting ")

    def _start_page(self) -> Child:
        options = ("--results", self.url("dashboard"), "--listen", f"{loopback()}:0", "--health", str(self.health))
        return self.start_program("page", f"{_EXAMPLE}.page", *options)

    # ---- looking

    def logged(self) -> int:
        """Messages in the log; as many as before while it does not answer."""
        try:
            queues = [LogQueue(TOPIC, number) for number in self.access.topics().get(TOPIC, [])]
            self._logged = sum(kept.end for kept in self.access.ranges(queues).values())
        except BrokerUnavailable as exc:
            _log.info("demo.log_away", "the log does not answer: %(error)s", error=exc)
        return self._logged
