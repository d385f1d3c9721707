"""Wrong arguments are refused where they are given, at import, by an error that names the valid ones."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.errors_page import is_documented
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncConsumer, AsyncProducer, Consumer, Producer, idempotent, transactional_message
from txmsg.client.sending.half import Half
from txmsg.errors import BrokerUnavailable, CorruptLog, InvalidMessage, InvalidName, MisuseError, TxmsgError
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metaq import PullConsumer
from txmsg.runtime.user_function import in_handler
from txmsg.wire.start import Start

X = Message("t", b"x")
HALF = Half(b"i" * 16, b"h" * 16)
SURROGATE = b"\xe9".decode(errors="surrogateescape")
Refused = dict[str, tuple[Callable[[], object], type[TxmsgError], str]]


class Listener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


class ListenerOfNothing:
    def check(self) -> TransactionState:
        return TransactionState.UNKNOWN


# A type checker would refuse the arguments below.
anything: Any = None
fence_listener: Any = FenceCheckListener
decorate: Any = transactional_message
inbox: Any = idempotent
async_producer: Any = AsyncProducer
engine = create_engine("sqlite://")
sessions = sessionmaker(engine)


made: list[Producer] = []


@pytest.fixture(autouse=True)
def _producers_end() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


def producer(**options: Any) -> Any:
    given: dict[str, Any] = {"brokers": "localhost:1", "group": "g", "check_listener": Listener()}
    made.append(Producer(**given | options))
    return made[-1]


def consumer(**options: Any) -> Any:
    given: dict[str, Any] = {"brokers": "localhost:1", "group": "g"}
    return Consumer(**given | options)


def log_consumer() -> Any:
    return PullConsumer("/nowhere", "g")


def subscribed(consumer: Any) -> Any:
    consumer.subscribe("t")(print_one)
    return consumer


def without_handler(consumer: Any) -> Any:
    consumer.subscribe("u")
    return consumer


def started(consumer: Any) -> Any:
    with suppress(CorruptLog):  # the log is not there
        consumer.start()
    consumer.close()
    return consumer


def decorated_twice(consumer: Any) -> None:
    decorator = consumer.subscribe("t")
    decorator(print_one)
    decorator(print_one)


def closed(*, was_started: bool = True, by_handler: bool = False) -> Any:
    made = subscribed(consumer())
    if was_started:
        made.start()
    token = in_handler.set(by_handler)
    made.close()
    in_handler.reset(token)
    if by_handler:
        return made
    made.close()  # twice is fine
    return made


def two(session: Session, message: object) -> None: ...


def generator(message: object) -> Iterator[int]:
    yield 1


async def async_generator(message: object) -> AsyncIterator[int]:
    yield 1


ADDRESSES: Refused = {
    repr(brokers): (partial(producer, brokers=brokers), InvalidName, words)
    for brokers, words in (
        (7700, "broker address 7700 is not"),
        ("", "broker address '' is not of the form HOST:PORT, such as localhost:7700"),
        ("localhost", "broker address 'localhost' is not"),
        ("a:1,,b:1", "broker address '' is not"),
        (":7700", "broker address ':7700' is not"),
        ("localhost:port", "broker address 'localhost:port' is not"),
        ("localhost:²", "broker address 'localhost:²' is not"),
        ("localhost:99999", "has port 99999: ports end at 65535"),
        ("http://localhost:7700", "leave out the part before ://"),
        ("local host:1", "broker address 'local host:1' is not"),
        (f"{SURROGATE}:1", "broker address '\\udce9:1' is not"),
        ("local\0host:1", "broker address 'local\\x00host:1' is not"),
    )
}
ADDRESSES["none"] = (partial(producer, brokers=[]), InvalidName, "no broker address was given")
ADDRESSES["list with None"] = (partial(producer, brokers=["a:1", None]), InvalidName, "broker address None is not")
ADDRESSES["of a consumer"] = (partial(consumer, brokers="a"), InvalidName, "broker address 'a' is not")

NUMBERS: Refused = {
    f"{name}={value}": (partial(make, **{name: value}), MisuseError, f"{name}={value!r}{note} must be {rule}")
    for make, name, rule, values in (
        (producer, "timeout_s", "a number of seconds from 0.001 to 86400", (0, -1, "10", None, float("inf"), True)),
        (consumer, "visibility_timeout_s", "a number of seconds from 1 to 43200", (0.5, "60", float("inf"))),
        (consumer, "close_timeout_s", "a number of seconds from 0 to 86400", (-1, None)),
        (consumer, "concurrency", "a whole number from 1 to 4096", (0, -1, 1.5, "3", None, True, 5000)),
        (consumer, "prefetch_bytes", "a whole number from 1 to 1073741824", (0, -1, 1.5, "3", None, True, 2**31)),
    )
    for value, note in ((value, "") for value in values)
}
NUMBERS["nan"] = (partial(producer, timeout_s=float("nan")), MisuseError, "timeout_s=nan (not a number) must be")

NUMBERS |= {
    f"start={start}": (partial(consumer, start=start), MisuseError, "is not a valid start position: give earliest")
    for start in ("", "latest", 5, datetime(2026, 1, 1, tzinfo=UTC), Start.offset(5))
}
NUMBERS |= {
    f"broadcast={name}": (partial(consumer, broadcast=name), kind, words)
    for name, kind, words in (
        (None, MisuseError, "broadcast=None is neither True nor the name of an instance"),
        ("a%b", MisuseError, "broadcast='a%b' is neither True"),
        ("a b", InvalidName, "broadcast instance 'a b' is not a valid name"),
        ("x" * 126, InvalidName, "it has 128 characters"),
    )
}

GROUPS: Refused = {
    f"{what} {group!r}"[:35]: (partial(make, group=group), InvalidName, f"{what} {group!r}"[:40])
    for make, what in ((producer, "producer group"), (consumer, "consumer group"))
    for group in ("", None, "a b", "x" * 128, "\0", SURROGATE)
}

LISTENERS: Refused = {
    "a function": (partial(producer, check_listener=two), MisuseError, "has no method check(message)"),
    "a class": (partial(producer, check_listener=Listener), MisuseError, "is the class Listener: give an instance"),
    "an engine": (partial(producer, check_listener=engine), MisuseError, "such as FenceCheckListener(engine)"),
    "check without a message": (
        partial(producer, check_listener=ListenerOfNothing()),
        MisuseError,
        "ListenerOfNothing.check() takes () -> 'TransactionState', but is called as (message)",
    ),
    "fence of a URL": (lambda: fence_listener("sqlite:///x"), MisuseError, "not 'sqlite:///x' of type"),
    "fence of a sessionmaker": (lambda: fence_listener(sessions), MisuseError, "give what create_eng"),
    "fence of nothing": (lambda: fence_listener(anything), MisuseError, "not None of type NoneType"),
    "fence in memory": (lambda: fence_listener(engine), MisuseError, "use a database file or server"),
}


def topics_of(consumer: Callable[[], Any]) -> Refused:
    """Calls that every kind of consumer refuses, with the same text."""
    return {
        "no topic": (lambda: consumer().subscribe(""), InvalidName, "topic '' is not a valid name"),
        "topic forgotten": (lambda: consumer().subscribe(print), MisuseError, "write @consumer.subscribe("),
        "tag of None": (
            lambda: consumer().subscribe("t", anything),
            InvalidName,
            "tag expression None is of type NoneType",
        ),
        "half a tag expression": (
            lambda: consumer().subscribe("t", "a ||"),
            InvalidName,
            "'a ||' has nothing beside a",
        ),
        "one bar": (
            lambda: consumer().subscribe("t", "x | y"),
            InvalidName,
            "tag expression 'x | y': tags are joined by ||, as in `signup || import`",
        ),
        "all and one tag": (lambda: consumer().subscribe("t", "* || a"), InvalidName, "`*` cannot be combined"),
        "and": (
            lambda: consumer().subscribe("t", "a && b"),
            InvalidName,
            "tag expression 'a && b': a message has one tag, so there is no `&&`; use ||",
        ),
        "nothing subscribed": (lambda: consumer().start(), MisuseError, "subscribes to nothing"),
    }


def subscriptions_of(consumer: Callable[[], Any]) -> Refused:
    """Calls of `topics_of`, and those that consumers with handlers refuse."""
    return {
        **topics_of(consumer),
        "no handler": (lambda: consumer().subscribe("t")(anything), MisuseError, "the handler of topic 't' is None"),
        "session without an inbox": (
            lambda: consumer().subscribe("t")(two),
            MisuseError,
            "but is called as (message): missing a required argument: 'message'",
        ),
        "generator": (lambda: consumer().subscribe("t")(generator), MisuseError, "generator() is a generator"),
        "async generator": (
            lambda: consumer().subscribe("t")(async_generator),
            MisuseError,
            "async_generator() is a gen",
        ),
        "class": (lambda: consumer().subscribe("t")(Listener), MisuseError, "is the class Listener"),
        "twice": (
            lambda: subscribed(consumer()).subscribe("t"),
            MisuseError,
            "group g subscribes to topic 't' already",
        ),
        "two handlers": (lambda: decorated_twice(consumer()), MisuseError, "has a handler for topic 't' already"),
        "after the start": (
            lambda: started(subscribed(consumer())).subscribe("u"),
            MisuseError,
            "subscribing to 'u' after the start",
        ),
        "one topic without a handler": (
            lambda: without_handler(subscribed(consumer())).start(),
            MisuseError,
            "topic 'u' of group g has no handler: decorate one by @consumer.subscribe('u')",
        ),
    }


CONSUMERS: Refused = {
    "inbox without its sessions": (lambda: inbox(two), MisuseError, "without a session factory above two"),
    "inbox of one session": (lambda: inbox(Session()), MisuseError, "give the sessionmaker"),
    "inbox of an engine": (lambda: inbox(engine), MisuseError, "is Engine(sqlite://), not a function"),
    "inbox for a handler of one": (
        lambda: consumer().subscribe("t")(inbox(sessions)(print_one)),
        MisuseError,
        "but is called as (session, message): too many positional arguments",
    ),
    "start after a close": (lambda: closed().start(), MisuseError, "the consumer is closed: make a new one"),
    "start after a close by a handler": (
        lambda: closed(by_handler=True).start(),
        MisuseError,
        "the consumer is closed: make a new one",
    ),
    "run after a close": (lambda: closed().run(), MisuseError, "the consumer is closed: make a new one"),
    "start after a close before any": (
        lambda: closed(was_started=False).start(),
        MisuseError,
        "the consumer is closed: make a new one",
    ),
}


def print_one(message: object) -> None: ...


SENDS: Refused = {
    "str": (lambda: producer().send("x"), InvalidMessage, "'x' is of type str, not a Message"),
    "None": (lambda: producer().send(anything), InvalidMessage, "None is of type NoneType, not a Message"),
    "list": (lambda: producer().send([X]), InvalidMessage, "of type list, not a Message"),
    "many of one": (lambda: producer().send_many(X), InvalidMessage, "of type Message: give a list"),
    "many of None": (lambda: producer().send_many(anything), InvalidMessage, "None is of type NoneType: give a list"),
    "many of a str": (lambda: producer().send_many("ab"), InvalidMessage, "'ab' is of type str: give a"),
    "many with None": (
        lambda: producer().send_many([X, anything]),
        InvalidMessage,
        "None is of type NoneType, not a Message",
    ),
    "half of nothing": (lambda: producer().half([]), InvalidMessage, "0 messages in one transaction: 1 to 1000"),
    "half of too many": (lambda: producer().half([X] * 1001), InvalidMessage, "1001 messages in one transaction"),
    "half under a str": (
        lambda: producer().half([X], transaction_id="7"),
        MisuseError,
        "transaction_id '7' is not a UUID",
    ),
    "outcome as str": (
        lambda: producer().end(HALF, "commit"),
        MisuseError,
        "outcome 'commit' is of type str: give TransactionState.COMMIT",
    ),
    "outcome as bool": (lambda: producer().end(HALF, True), MisuseError, "outcome True is of type bool"),
    "outcome of no half": (
        lambda: producer().end(anything, TransactionState.COMMIT),
        MisuseError,
        "None is not a Half: give what producer.half() returned",
    ),
    "transaction of a sessionmaker": (
        lambda: producer().transaction(sessions),
        MisuseError,
        "of type sessionmaker: give a Session to a Producer",
    ),
    "transaction of a scoped_session": (
        lambda: producer().transaction(scoped_session(sessions)),
        MisuseError,
        "of a scoped_session, what calling it returns",
    ),
    "transaction of an AsyncSession": (
        lambda: producer().transaction(AsyncSession()),
        MisuseError,
        "an AsyncSession to an AsyncProducer",
    ),
    "async transaction of a Session": (
        lambda: async_producer("a:1", group="g", check_listener=Listener()).transaction(Session()),
        MisuseError,
        "an AsyncSession to an AsyncProducer",
    ),
    "transaction without a listener": (
        lambda: producer(check_listener=None).transaction(Session()),
        MisuseError,
        "needs a producer with a check_listener",
    ),
}

DECORATORS: Refused = {
    "its parentheses forgotten": (
        lambda: decorate(two),
        MisuseError,
        "write @transactional_message(producer, topic=...)",
    ),
    "no producer": (lambda: decorate(anything, topic="t"), MisuseError, "was given None as its producer"),
    "a key of another type": (
        lambda: decorate(producer(), topic="t", key=7)(two),
        MisuseError,
        "key=7 names no argument of two(): there are session, message; give one of these",
    ),
    "message= that is no function": (
        lambda: decorate(producer(), topic="t", message=b"x")(two),
        MisuseError,
        "message=b'x' of two() must be a plain function",
    ),
    "message= that is async": (
        lambda: decorate(producer(), topic="t", message=Coroutines.build)(two),
        MisuseError,
        "must be a plain function",
    ),
    "session= that is an engine": (
        lambda: decorate(producer(), topic="t", session=engine)(two),
        MisuseError,
        "session= of two is Engine(sqlite://): give the sessionmaker: session=sessionmaker(engine)",
    ),
    "session= that is the class": (
        lambda: decorate(producer(), topic="t", session=Session)(two),
        MisuseError,
        "session= of two is <class 'sqlalchemy.orm.session.Session'>: give the sessionmaker: session=sessionmaker(",
    ),
    "session= that is an engine, of a coroutine": (
        lambda: decorate(
            async_producer("a:1", group="g", check_listener=Listener()),
            topic="t",
            session=create_async_engine("sqlite+aiosqlite://"),
        )(Coroutines.build),
        MisuseError,
        ": give the sessionmaker: session=async_sessionmaker(engine)",
    ),
}


class Coroutines:
    @staticmethod
    async def build(session: Session, message: object) -> bytes:
        return b""


ALL: Refused = {
    f"{about}: {case}": refused
    for about, cases in (
        ("address", ADDRESSES),
        ("number", NUMBERS),
        ("group", GROUPS),
        ("listener", LISTENERS),
        ("subscription", subscriptions_of(consumer)),
        ("topic of a log", topics_of(log_consumer)),
        ("consumer", CONSUMERS),
        ("send", SENDS),
        ("decorator", DECORATORS),
    )
    for case, refused in cases.items()
}


@pytest.mark.parametrize(("use", "kind", "words"), ALL.values(), ids=ALL)
def test_a_wrong_argument_is_refused_by_name(use: Callable[[], object], kind: type[TxmsgError], words: str) -> None:
    with pytest.raises(TxmsgError) as caught:
        use()
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert is_documented(caught.value), str(caught.value)


@pytest.mark.parametrize("brokers", ["localhost:7700", " a:1 , b:2 ", "[::1]:7700", ["10.0.0.1:65535"], ("a_b.c-d:1",)])
def test_common_forms_of_addresses_are_accepted(brokers: Any) -> None:
    assert producer(brokers=brokers)
    assert AsyncConsumer(brokers, group="g")


def test_common_forms_of_handlers_are_accepted() -> None:
    class Handling:
        def __call__(self, message: object) -> None: ...

        def method(self, message: object, verbose: bool = False) -> None: ...

        async def coroutine(self, message: object) -> None: ...

    taken = consumer()
    for number, handler in enumerate(
        (
            *(print, print_one, [].append, Handling(), Handling().method, Handling().coroutine),
            *(lambda message: None, partial(two, anything), inbox(sessions)(two)),
        )
    ):
        assert taken.subscribe(f"t{number}")(handler) is handler


def test_a_hanging_business_database_is_named_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def connect() -> sqlite3.Connection:
        go_on.wait(30)
        return sqlite3.connect(tmp_path / "business.db", check_same_thread=False)

    hanging = create_engine("sqlite:///business.db", creator=connect, poolclass=NullPool)
    monkeypatch.setattr("txmsg.client.producer._GRACE_S", 0.1)
    try:
        with pytest.raises(
            BrokerUnavailable, match=r"did not start within 0\.2 s: does the business database"
        ) as caught:
            producer(check_listener=FenceCheckListener(hanging), timeout_s=0.1).send(X)
        assert is_documented(caught.value)
    finally:
        go_on.set()
