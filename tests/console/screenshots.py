"""Takes the screenshots of the console in docs/images while a shop sends and consumes messages.

    python -m tests.console.screenshots docs/images

They are for people; what pages have to show is in test_browser.py. The fonts are those of this machine.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from playwright.sync_api import Browser, Page, expect

from benchmarks.surroundings import broker_process, console_process, metaq_process, notify_database, tailer_process
from tests.integration.cli_harness import json_of
from tests.page.pictures import Picture, camera, take
from tests.waiting import until_async
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.client.app import Txmsg
from txmsg.message import Message, ReceivedMessage, TransactionState

_PLAY_S: Final = 60
"""Approximate length of the time axes in the pictures, in seconds."""
_WAIT_MS_MAX: Final = 60_000
_TURN_S: Final = 0.05


class _Group(NamedTuple):
    name: str
    topic: str
    works_s: float
    """Seconds per message; the slowest groups fall behind."""


_GROUPS: Final = (
    _Group("payments", "order.placed", 0.001),
    _Group("red-packets", "order.placed", 0.002),
    _Group("search-index", "order.placed", 0.09),
    _Group("ledger", "payment.settled", 0.001),
    _Group("mailer", "payment.settled", 0.13),
    _Group("couriers", "parcel.sent", 0.002),
)
_RATES: Final = {"order.placed": 120, "payment.settled": 80, "parcel.sent": 40}
"""Average messages per second, around which the rates swing."""


_POISONED: Final = "order-1017"
"""Key of the message that becomes a dead letter."""
_HANDLER: Final = compile(
    """
import asyncio

async def send(parcel):
    if b'"address": null' in parcel.body:
        raise ValueError("the parcel has no address")
    await asyncio.sleep(works_s)
""",
    "shop/couriers.py",  # which the page names in the error
    "exec",
)
_OVERVIEWS: Final = (
    Picture("console-light", (1440, 760), path="/shop"),
    Picture("console-dark", (1440, 760), "dark", "zh-CN", path="/shop"),
)
_LOGS: Final = Picture("console-logs", (1440, 400), path="/shop/mirrors")
_ALERTS: Final = Picture("console-alerts", (1440, 560), "dark", path="/shop/alerts")
_LIFE: Final = ("console-message", (1440, 860))


_ALERT_RULE: Final = """
[receivers.couriers]
command = ["/bin/cat"]

[rules.ParcelsWithoutAddress]
sql = "select count(*) from txmsg.dead_letter"
database = "{url}"
above = 0
for = "0s"
severity = "critical"
summary = "parcels without an address: {{{{ $value }}}}"
action = "Ask the customers, and redrive the dead letters of couriers."
"""


def main() -> int:
    """Run the shop and take the screenshots."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with shop() as (browser, console, broker):
        _take_all(browser, console, broker, target)
    return 0


@contextmanager
def shop() -> Iterator[tuple[Browser, str, str]]:
    """Run a shop: yields a browser, the URL of the console and the address of a broker."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="txmsg-pictures-")))
        url = stack.enter_context(notify_database(None))
        alerts = directory / "alerts.toml"
        alerts.write_text(_ALERT_RULE.format(url=url))
        options = ("--first-check-s", "2", "--alerts", str(alerts))
        brokers = [
            stack.enter_context(broker_process(url, "--id", id_, *options)).address for id_ in ("shop-1", "shop-2")
        ]
        log, _ = stack.enter_context(metaq_process(directory / "log"))
        stack.enter_context(tailer_process(url, log))
        console = stack.enter_context(console_process(f"shop={','.join(brokers)}", "--log", f"trades={log}"))
        browser = stack.enter_context(camera())
        is_over = threading.Event()
        play = threading.Thread(target=lambda: asyncio.run(_play(brokers, log, is_over)))
        play.start()
        try:
            # Time series are fine-grained while a page is open.
            watching = browser.new_page()
            watching.goto(f"http://{console}/shop")
            watching.wait_for_timeout(1000 * _PLAY_S)
            yield browser, f"http://{console}", brokers[0]
        finally:
            is_over.set()
            play.join()


def _take_all(browser: Browser, url: str, broker: str, target: Path) -> None:
    for picture in _OVERVIEWS:
        take(browser, url, picture, target, _shows("[id^=group-]", ".findings [data-state]"))
    take(browser, url, _LOGS, target, _shows("[id^=log-] [data-state=good]", "[id^=mirror-] [data-state=good]"))
    take(browser, url, _ALERTS, target, _shows("[id^=alert-] [data-state=bad]"))
    (message,) = json_of("message", "find", "--key", _POISONED, "--broker", broker)["messages"]
    life = Picture(*_LIFE, path=f"/shop/messages/{message['id']}")
    take(browser, url, life, target, _shows(".life [data-what=dead]"))


def _shows(*selectors: str) -> Callable[[Page], None]:
    """Wait for a page of the console with at least one of each of these."""

    def wait(page: Page) -> None:
        page.wait_for_selector("html[data-ready]")
        for selector in selectors:
            expect(page.locator(selector).first).to_be_visible(timeout=_WAIT_MS_MAX)

    return wait


async def _play(brokers: Sequence[str], log: str, is_over: threading.Event) -> None:
    """Send and consume until the end. One message is committed by a check-back, and one becomes a dead letter."""
    async with AsyncExitStack() as stack:
        for group in _GROUPS:
            await stack.enter_async_context(_consumer(brokers, group))
        await stack.enter_async_context(_reader(log))
        # A producer prefers one broker.
        producers = [
            await stack.enter_async_context(AsyncProducer(each, group="shop", check_listener=_Committed()))
            for each in brokers
        ]
        producer = producers[0]
        broker = ("--broker", brokers[0])
        for topic in _RATES:
            await producer.send(Message(topic, b"first"))
        await until_async(lambda: "couriers" in _names(broker))
        await asyncio.to_thread(json_of, "topic", "alter", "parcel.sent", "--journal", "on", *broker)
        await asyncio.to_thread(
            json_of, "group", "alter", "couriers", "--retries", "2", "--retry-delays", "1s,5s", *broker
        )
        turn = 0
        while not is_over.is_set():
            if turn == 15 / _TURN_S:
                body = b'{"order": 1017, "weight_kg": 2.4, "address": null}'
                await producer.half([Message("parcel.sent", body, key=_POISONED)])  # whose sender then "dies"
            swing = 1 + 0.35 * math.sin(turn * _TURN_S / 6)
            counts = {topic: round(rate * swing * _TURN_S) for topic, rate in _RATES.items()}
            await asyncio.gather(
                asyncio.sleep(_TURN_S),
                *(
                    producers[n % 2].send(Message(topic, b"{}"))
                    for topic, count in counts.items()
                    for n in range(count)
                ),
            )
            turn += 1


class _Committed:
    """Answers that every transaction was committed."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


def _reader(log: str) -> Txmsg:
    app = Txmsg(log=log, group="dashboard")

    @app.subscribe("order.placed", source="log")
    async def count(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)

    return app


def _names(broker: tuple[str, str]) -> set[str]:
    return {each["group"] for each in json_of("group", "list", *broker)["groups"]}


def _consumer(brokers: Sequence[str], group: _Group) -> AsyncConsumer:
    consumer = AsyncConsumer(brokers, group=group.name, concurrency=8, close_timeout_s=1.0)
    shop: dict[str, Any] = {"works_s": group.works_s}
    exec(_HANDLER, shop)
    consumer.subscribe(group.topic)(shop["send"])
    return consumer


if __name__ == "__main__":
    sys.exit(main())
