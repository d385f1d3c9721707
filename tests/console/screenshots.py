"""Takes the pictures of the console that docs/images holds, while a shop's messages are sent and consumed.

    python -m tests.console.screenshots docs/images

They are for people; what pages have to show is in test_browser.py. The fonts are those of this machine.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, expect

from benchmarks.surroundings import broker_process, console_process, notify_database
from tests.integration.cli_harness import json_of
from tests.page.chromium import HOW_TO_INSTALL, chromium
from tests.waiting import until_async
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.demo.trades.browser import find_browser
from txmsg.message import Message, ReceivedMessage

_PLAY_S: Final = 60
"""The time lines of the pictures are about so long."""
_WAIT_MS_MAX: Final = 60_000
_TURN_S: Final = 0.05
_POISON: Final = b"no address"


class _Group(NamedTuple):
    name: str
    topic: str
    works_s: float
    """For each message; the slowest groups fall behind."""


_GROUPS: Final = (
    _Group("payments", "order.placed", 0.001),
    _Group("red-packets", "order.placed", 0.002),
    _Group("search-index", "order.placed", 0.09),
    _Group("ledger", "payment.settled", 0.001),
    _Group("mailer", "payment.settled", 0.13),
    _Group("couriers", "parcel.sent", 0.002),
)
_RATES: Final = {"order.placed": 120, "payment.settled": 80, "parcel.sent": 40}
"""Messages per second, about which they swing."""


class _Picture(NamedTuple):
    name: str
    size: tuple[int, int]
    scheme: Literal["dark", "light"]
    locale: str


_PICTURES: Final = (
    _Picture("console-light", (1440, 760), "light", "en-GB"),
    _Picture("console-dark", (1440, 760), "dark", "zh-CN"),
)


def main() -> int:
    """Plays and takes the pictures."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    path = find_browser()
    assert path is not None, HOW_TO_INSTALL
    with ExitStack() as stack:
        url = stack.enter_context(notify_database(None))
        brokers = [stack.enter_context(broker_process(url, "--id", id_)).address for id_ in ("shop-1", "shop-2")]
        address = stack.enter_context(console_process(",".join(brokers)))
        browser = stack.enter_context(chromium(path))
        is_over = threading.Event()
        play = threading.Thread(target=lambda: asyncio.run(_play(brokers, is_over)))
        play.start()
        try:
            # Time lines are fine while a page is looked at.
            watching = browser.new_page()
            watching.goto(f"http://{address}/notify")
            watching.wait_for_timeout(1000 * _PLAY_S)
            for picture in _PICTURES:
                _take(browser, f"http://{address}/notify", picture, target / f"{picture.name}.png")
        finally:
            is_over.set()
            play.join()
    return 0


async def _play(brokers: Sequence[str], is_over: threading.Event) -> None:
    """Sends and consumes until it is over. One message becomes a dead letter."""
    async with AsyncExitStack() as stack:
        for group in _GROUPS:
            await stack.enter_async_context(_consumer(brokers, group))
        # A producer prefers one broker.
        producers = [await stack.enter_async_context(AsyncProducer(each, group="shop")) for each in brokers]
        producer = producers[0]
        broker = ("--broker", brokers[0])
        for topic in _RATES:
            await producer.send(Message(topic, b"first"))
        await until_async(lambda: "couriers" in _names(broker))
        await asyncio.to_thread(json_of, "group", "alter", "couriers", "--retries", "0", *broker)
        turn = 0
        while not is_over.is_set():
            if turn == 15 / _TURN_S:
                await producer.send(Message("parcel.sent", _POISON, key="order-1017"))
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


def _names(broker: tuple[str, str]) -> set[str]:
    return {each["group"] for each in json_of("group", "list", *broker)["groups"]}


def _consumer(brokers: Sequence[str], group: _Group) -> AsyncConsumer:
    consumer = AsyncConsumer(brokers, group=group.name, concurrency=8, close_timeout_s=1.0)

    @consumer.subscribe(group.topic)
    async def handle(message: ReceivedMessage) -> None:
        if message.body == _POISON:
            raise ValueError("the parcel has no address")
        await asyncio.sleep(group.works_s)

    return consumer


def _take(browser: Browser, url: str, picture: _Picture, target: Path) -> None:
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        locale=picture.locale,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_WAIT_MS_MAX)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("[id^=group-]").first).to_be_visible()
    expect(page.locator(".findings [data-state=bad]").first).to_be_visible()
    page.screenshot(path=target)
    context.close()
    with Image.open(target) as taken:  # a palette: a third of the size
        taken.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


if __name__ == "__main__":
    sys.exit(main())
