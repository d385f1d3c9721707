"""A user's program before and after an upgrade. Imports nothing of the tests: it runs on any release of txmsg.

    python upgrade_client.py before|after DIRECTORY BROKER METAQ

Prints one line of JSON: what it sent and received.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from txmsg import (
    BrokerUnavailable,
    Consumer,
    FenceCheckListener,
    Message,
    Producer,
    ReceivedMessage,
    Reject,
    RetryAfter,
    Start,
    TransactionState,
    create_tables,
    transactional_message,
)
from txmsg.metaq import LogProducer, open_log

try:
    from txmsg.metaq import PullConsumer
except ImportError:  # a release in which log consumers also had handlers
    from txmsg.metaq import LogConsumer as PullConsumer  # type: ignore[attr-defined,no-redef]

ORDERS = 200
REMINDERS, CHARGES, AWAY, LINES = 10, 6, 3, 20
HANDLED_BEFORE = 80
READ_FIRST, READ_NEXT = 30, 70
"""Together more than a file of the log holds; an append is not divided, so the log gets them in at least two."""
RETRY_S = 15.0
NOBODY = "127.0.0.1:1"
WAIT_S = 200.0


class Inbox:
    """Bodies accepted by handlers, by topic, in order of arrival."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self.bodies: defaultdict[str, list[str]] = defaultdict(list)

    def put(self, message: ReceivedMessage) -> None:
        with self._arrived:
            self.bodies[message.topic].append(name_of(message.body))
            self._arrived.notify_all()

    def wait(self, holds: Callable[[], bool], why: str) -> None:
        with self._arrived:
            assert self._arrived.wait_for(holds, WAIT_S), f"{why}: {dict(self.bodies)}"


def body_of(name: str) -> bytes:
    """Return a kilobyte that hardly compresses, so that a log has several files."""
    return name.encode() + b" " + hashlib.shake_256(name.encode()).hexdigest(500).encode()


def name_of(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


class Shop:
    """An outbox in SQLite."""

    def __init__(self, directory: Path, producer: Producer) -> None:
        def place(session: Session, number: int) -> None:
            session.execute(text("insert into orders (number) values (:number)"), {"number": number})

        wrap = transactional_message(producer, topic="placed", session=sessions(directory), when_away="outbox")
        self.place = wrap(place)


def sessions(directory: Path) -> sessionmaker[Session]:
    engine = create_engine(f"sqlite:///{directory / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("create table if not exists orders (number integer primary key)"))
    create_tables(engine)
    return sessionmaker(engine)


class Away:
    """A log that does not answer."""

    def append(self, appends: Sequence[object]) -> list[int]:
        raise BrokerUnavailable("no log answers")


class Undecided:
    """A listener that answers UNKNOWN: half messages outlive the release."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


class Bank:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if message.body.startswith(b"commit") else TransactionState.ROLLBACK


def before(directory: Path, broker: str, metaq: str) -> dict[str, object]:
    with Producer(broker, group="shop") as producer:
        orders = [Message("orders", body_of(f"order-{n}"), key=f"k{n}") for n in range(ORDERS)]
        producer.send_many(orders[: ORDERS // 2])
        first_read = read(metaq, "orders", READ_FIRST)
        producer.send_many(orders[ORDERS // 2 :])
        producer.send_many(
            [Message("reminders", b"reminder-%d" % n, deliver_after=timedelta(seconds=20)) for n in range(REMINDERS)]
        )
    with Producer(broker, group="bank", check_listener=Undecided()) as producer:
        for n in range(CHARGES):
            outcome = b"rollback" if n % 2 else b"commit"
            producer.half([Message("charges", outcome + b"-%d" % n)])

    engine = sessions(directory).kw["bind"]
    with Producer(NOBODY, group="shop", check_listener=FenceCheckListener(engine)) as producer:
        shop = Shop(directory, producer)
        for n in range(AWAY):
            shop.place(n)

    inbox, failed, rejected = Inbox(), set[str](), set[str]()
    consumer = Consumer(broker, group="mailer", start=Start.earliest(), concurrency=4)

    @consumer.subscribe("orders")
    def mail(message: ReceivedMessage) -> None:
        name = name_of(message.body)
        number = int(name.removeprefix("order-"))
        if number % 20 == 1 and name not in failed:
            failed.add(name)
            raise RetryAfter(RETRY_S, "the mail server is away")
        if number % 20 == 2:
            rejected.add(name)
            raise Reject("no address")
        inbox.put(message)

    with consumer:
        inbox.wait(lambda: len(inbox.bodies["orders"]) >= HANDLED_BEFORE, "orders before the upgrade")

    with LogProducer(Away(), queues=2, spool=directory / "spool") as spooling:  # type: ignore[arg-type]
        spooling.send_many([Message("lines", b"line-%d" % n) for n in range(LINES)])
    return {
        "mailed": inbox.bodies["orders"],
        "failed": sorted(failed),
        "rejected": sorted(rejected),
        "read": first_read + read(metaq, "orders", READ_NEXT),
    }


def read(metaq: str, topic: str, count: int) -> list[str]:
    """Read at least `count` messages of the log, from the group's position, and commit their offsets."""
    found: list[str] = []
    consumer = PullConsumer(metaq, f"readers-of-{topic}", start=Start.earliest())
    consumer.subscribe(topic)
    deadline = time.monotonic() + WAIT_S
    with consumer:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages of {topic} came to the log"
            for batch in consumer.poll(timeout_s=1.0, count_max=1):
                found += [name_of(body) for body in batch.to_arrow()["body"].to_pylist()]
            consumer.commit()
    return found


def after(directory: Path, broker: str, metaq: str) -> dict[str, object]:
    known = json.loads((directory / "before.json").read_text())
    engine = sessions(directory).kw["bind"]
    inbox = Inbox()
    mailer = Consumer(broker, group="mailer", start=Start.earliest())
    mailer.subscribe("orders")(inbox.put)
    others = Consumer(broker, group="others", start=Start.earliest())
    for topic in ("reminders", "charges", "placed"):
        others.subscribe(topic)(inbox.put)
    wanted = {"orders": ORDERS - len(known["mailed"]), "reminders": REMINDERS, "charges": CHARGES // 2, "placed": AWAY}
    bank = Producer(broker, group="bank", check_listener=Bank())
    producer = Producer(broker, group="shop", check_listener=FenceCheckListener(engine))
    Shop(directory, producer)
    with bank, producer, mailer, others:
        inbox.wait(
            lambda: all(len(inbox.bodies[topic]) >= count for topic, count in wanted.items()), f"{wanted} not in time"
        )
        producer.send(Message("orders", body_of("order-new")))
        inbox.wait(lambda: "order-new" in inbox.bodies["orders"], "an order after the upgrade")
    with open_log(metaq) as log, LogProducer(log, queues=2, spool=directory / "spool") as lines:
        lines.send(Message("lines", b"line-new"))
        spooled = read(metaq, "lines", LINES + 1)
    return {**inbox.bodies, "read": read(metaq, "orders", ORDERS + 1 - len(known["read"])), "lines": spooled}


if __name__ == "__main__":
    when, place, *addresses = sys.argv[1:]
    print(json.dumps({"before": before, "after": after}[when](Path(place), *addresses)))
