"""Cost of one failure of a busy ordering key for the messages behind it.

Claim: after the failure the key catches up at the speed of delivery, in order: at least half of the rate before. By
turns on one database: all messages have one ordering key and wait when the group begins; in every other turn the
handler refuses the first one once. The rate is that of the messages after the first, from the moment at which it is
processed. The exit status is 1 if the ratio is below 0.5, or if a message is missing, came twice or out of order.

    python -m benchmarks.hot_key [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

from benchmarks.load import CONCURRENCY, WAIT_S_MAX, batched, run, send_streams
from benchmarks.surroundings import broker_process, notify_database, parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.client import AsyncConsumer
from txmsg.consumer.failures import RetryAfter
from txmsg.message import Message, ReceivedMessage

TOPIC, KEY, BODY = "bench.hot-key", "hot", b"x" * 92
DELAY_S = 0.5
RATIO_MIN = 0.5


@dataclass(slots=True)
class HotKey:
    """One ordering key, and the numbers of its messages in order of arrival."""

    address: str
    count: int
    sent: int = 0
    numbers: list[int] = field(default_factory=list)

    def turn(self, *, fails: bool) -> dict[str, float]:
        """Send, then let the group consume."""
        numbers = range(self.sent, self.sent + self.count)
        messages = [Message(TOPIC, number.to_bytes(8) + BODY, ordering_key=KEY) for number in numbers]
        run(send_streams(self.address, [batched(messages)]))
        self.sent += self.count
        return {"deliver": run(self._consume(fails=fails))}

    async def _consume(self, *, fails: bool) -> float:
        consumer = AsyncConsumer(self.address, group="bench", concurrency=CONCURRENCY)
        all_came = asyncio.Event()
        began_at = ended_at = 0.0
        left = self.count
        is_refused = not fails

        @consumer.subscribe(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal began_at, ended_at, left, is_refused
            if not is_refused:
                is_refused = True
                raise RetryAfter(DELAY_S)
            self.numbers.append(int.from_bytes(message.body[:8]))
            left -= 1
            began_at = began_at or time.perf_counter()
            if not left:
                ended_at = time.perf_counter()
                all_came.set()

        async with consumer, asyncio.timeout(WAIT_S_MAX):
            await all_came.wait()
        return (self.count - 1) / (ended_at - began_at)

    @property
    def wrong(self) -> int:
        """Return the number of missing messages and of those not directly after their predecessor."""
        out_of_order = sum(number != place for place, number in enumerate(self.numbers))
        return out_of_order + abs(self.sent - len(self.numbers))


def main() -> int:
    """Measure, print, and check the order."""
    parser = parser_of(__doc__, "few turns")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    parser.add_argument("--count", type=int, metavar="N", help="messages of a turn")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    options = parser.parse_args()
    turns = options.turns or (3 if options.quick else 9)
    count = options.count or (1_000 if options.quick else 5_000)
    compared: dict[str, Compared] = {}
    with (
        notify_database(options.storage) as url,
        broker_process(url) as broker,
        progress_of("hot key", turns) as step,
    ):
        key = HotKey(broker.address, count)
        key.turn(fails=False)  # warms caches and plans
        for _ in range(turns):
            by_turns(lambda: key.turn(fails=True), lambda: key.turn(fails=False), compared)
            step()
    (each,) = compared.values()
    print(
        f"after one failure {each.rate:10,.0f}/s   without {each.reference:10,.0f}/s   "
        f"ratio {each.ratio:.3f} (at least {RATIO_MIN})"
    )
    print(f"{key.wrong} messages missing, twice, or out of order")
    if options.json:
        print(json.dumps({**each.figures("deliver"), "wrong": key.wrong}))
    return 1 if key.wrong or each.ratio < RATIO_MIN else 0


if __name__ == "__main__":
    sys.exit(main())
