"""Cost of ordering: messages with an ordering key, of many keys and of few, beside messages without one.

No claim but this: order costs sending little, and with many keys delivery, too. With few keys one message of each is
under way at a time, so delivery is bound by the way to the handler and back. By turns on one database: messages are
sent, then a group consumes them. Each sender owns its keys and counts their messages; the handler checks that each
key's come in that order. The exit status is 1 if one did not, or if a message is missing or came twice.

    python -m benchmarks.ordered [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count as count_up

from benchmarks.load import STREAMS, Arrivals, batched, consume, run, send_streams
from benchmarks.surroundings import broker_process, notify_database, parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.message import Message, ReceivedMessage

MANY, FEW = 100_000, 16
BODY = b"x" * 92


class InOrder(Arrivals):
    """Also checks that the messages of each key arrive in the order of sending."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong_order = 0
        self._last: defaultdict[str | None, int] = defaultdict(lambda: -1)

    def note(self, message: ReceivedMessage) -> None:
        number = int.from_bytes(message.body[:8])
        if message.ordering_key is not None:
            self.wrong_order += number != self._last[message.ordering_key] + 1
            self._last[message.ordering_key] = number
        super().note(message)


@dataclass(slots=True)
class Setting:
    """A topic whose messages have one of so many ordering keys; 0: none."""

    address: str
    topic: str
    keys: int
    count: int
    sent: int = 0
    arrivals: InOrder = field(default_factory=InOrder)
    _numbers: defaultdict[int, count_up[int]] = field(default_factory=lambda: defaultdict(count_up))

    def turn(self) -> dict[str, float]:
        """Send, then let the group consume."""
        streams = [
            list(batched([self._message(place) for place in range(i, self.count, STREAMS)])) for i in range(STREAMS)
        ]
        self.sent += self.count
        return {
            "send": run(send_streams(self.address, streams)),
            "deliver": run(consume(self.address, self.topic, "bench", self.count, self.arrivals)),
        }

    def _message(self, place: int) -> Message:
        key = place % (self.keys or MANY)  # a sender's own: STREAMS divides the number of keys
        body = next(self._numbers[key]).to_bytes(8) + BODY
        return Message(self.topic, body, ordering_key=f"key-{key}" if self.keys else None)

    @property
    def wrong(self) -> int:
        return self.arrivals.repeated + self.arrivals.wrong_order + abs(self.sent - self.arrivals.count)


def main() -> int:
    """Measure, print, and check the order."""
    parser = parser_of(__doc__, "few turns")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    parser.add_argument("--count", type=int, metavar="N", help="messages of a turn; of a 20th for few keys")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    options = parser.parse_args()
    turns = options.turns or (3 if options.quick else 9)
    count = options.count or (50_000 if options.quick else 200_000)
    found: dict[str, dict[str, Compared]] = {f"{MANY:,} keys": {}, f"{FEW} keys": {}}
    with (
        notify_database(options.storage) as url,
        broker_process(url) as broker,
        progress_of("ordered", turns * len(found)) as step,
    ):
        none = Setting(broker.address, "bench.unordered", 0, count)
        many = Setting(broker.address, "bench.many-keys", MANY, count)
        few = Setting(broker.address, "bench.few-keys", FEW, max(STREAMS, count // 20))
        for setting in (none, many, few):
            setting.turn()  # warms caches and plans
        for _ in range(turns):
            for setting, compared in zip((many, few), found.values(), strict=True):
                by_turns(setting.turn, none.turn, compared)
                step()
    wrong = many.wrong + few.wrong + none.wrong
    for keys, compared in found.items():
        for name, each in compared.items():
            print(
                f"{keys:13}{name:8}{each.rate:10,.0f}/s   "
                f"without a key {each.reference:10,.0f}/s   ratio {each.ratio:.3f}"
            )
    print(f"{wrong} messages missing, twice, or out of the order of their key")
    if options.json:
        figures = {
            keys: {key: value for name, each in compared.items() for key, value in each.figures(name).items()}
            for keys, compared in found.items()
        }
        print(json.dumps({**figures, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
