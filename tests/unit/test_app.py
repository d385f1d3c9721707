"""Declarations of an application: parameters of handlers, routers, batches, rates; without a broker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends as FastAPIDepends

from tests.unit.starting import start_others
from txmsg.client.app import Depends, Router, Txmsg
from txmsg.client.app.batches import Batches
from txmsg.client.app.dependencies import Injected
from txmsg.client.app.handling import Handling
from txmsg.client.app.loading import load
from txmsg.client.app.processes import HandlerProcessDied, HandlerProcesses
from txmsg.client.app.sending import Outgoing
from txmsg.client.consumer import Consumer
from txmsg.consumer.failures import Reject, Retry, RetryAfter
from txmsg.consumer.handler_rate import HandlerRate
from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import Message, ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.runtime.reason import text_of
from txmsg.runtime.user_function import in_handler
from txmsg.wire.brokers import shards_of

MESSAGE = ReceivedMessage("t", b"{}", key="k", headers={"a": "b"})
seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def key(message: ReceivedMessage) -> str | None:
    seen.append("key")
    return message.key


def opened(of: Annotated[str, Depends(key)]) -> Iterator[str]:
    seen.append("open")
    try:
        yield f"session of {of}"
    except ArithmeticError:
        seen.append("rolled back")
        raise
    else:
        seen.append("committed")


async def opened_async(of: Annotated[str, FastAPIDepends(key)]) -> AsyncIterator[str]:
    yield f"async session of {of}"
    seen.append("closed")


def handle(
    message: ReceivedMessage,
    session: Annotated[str, Depends(opened)],
    of: Annotated[str, Depends(key)],
    log: logging.Logger,
    limit: int = 3,
) -> None:
    seen.append((message.key, session, of, log.name, limit))
    if message.body == b"bad":
        raise ArithmeticError


async def handle_async(session: Annotated[str, Depends(opened_async)], *, message: ReceivedMessage) -> None:
    seen.append((session, message.key))


def test_dependencies_of_a_handler_are_resolved_once_per_message() -> None:
    Injected(handle).on_thread(MESSAGE)
    assert seen == ["key", "open", ("k", "session of k", "k", __name__, 3), "committed"]


def test_a_dependency_sees_the_exception_of_the_handler() -> None:
    with pytest.raises(ArithmeticError):
        Injected(handle).on_thread(MESSAGE._replace(body=b"bad"))
    assert seen[-1] == "rolled back"


async def test_a_coroutine_can_use_sync_async_and_fastapi_dependencies() -> None:
    await Injected(handle_async).on_loop(MESSAGE)
    assert seen == ["key", ("async session of k", "k"), "closed"]


def test_an_override_replaces_a_dependency_everywhere() -> None:
    Injected(handle, overrides={key: lambda: "other"}).on_thread(MESSAGE)
    assert seen[1] == ("k", "session of other", "other", __name__, 3)


def unknown(message: ReceivedMessage, amount: complex) -> None: ...
def bare(message: ReceivedMessage, amount) -> None: ...  # type: ignore[no-untyped-def]
def mixed(session: Annotated[str, Depends(opened_async)]) -> None: ...
def circle(of: Annotated[str, Depends(lambda: None)], me: Annotated[str, Depends(handle)]) -> None: ...
def one(message: ReceivedMessage) -> None: ...
def several(messages: list[ReceivedMessage]) -> None: ...
def unread(message: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


def chosen(app: Txmsg, group: str) -> object:
    app.groups = [group]
    return app._chosen()


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app: app.subscribe("t", group="g")(unknown), "parameter 'amount'"),
        (lambda app: app.subscribe("t", group="g")(bare), "is not annotated"),
        (lambda app: app.subscribe("t", group="g")(mixed), "which is async"),
        (lambda app: app.subscribe("t", group="g")(unread), "cannot be read"),
        (lambda app: app.subscribe("t", group="g", batch=10)(one), "batch= gives lists"),
        (lambda app: app.subscribe("t", group="g")(several), "annotated with"),
        (lambda app: app.subscribe("t", group="g", batch=0), "batch=0"),
        (lambda app: app.subscribe("t", group="g", batch=1000, concurrency=5), "batch=1000 times concurrency=5"),
        (lambda app: app.subscribe("t", group="g", rate=0), "rate=0"),
        (lambda app: app.subscribe("t", group="g", retry=3), "not a Retry"),
        (lambda app: app.subscribe("t", group="g", runs_in="heaven"), "runs_in='heaven'"),
        (lambda app: app.subscribe("t", group="g", runs_in="processes")(handle_async), "must be a def"),
        (lambda app: app.subscribe("t", group="g", runs_in="processes")(lambda message: None), "could not import"),
        (lambda app: app.subscribe(one), "without a topic"),
        (lambda app: app.include(app), "cannot include itself"),
        (lambda app: app.include("shop.router"), "no Router"),
        (lambda app: app.on_startup(opened), "decorate it with @app.lifespan"),
        (lambda app: app.lifespan(3), "yields once"),
        (lambda app: (app.subscribe("t")(one), app.subscriptions), "has no group"),
        (lambda app: [app.subscribe("t", group="g")(one) for _ in "12"] and app.subscriptions, "two handlers"),
        (
            lambda app: (app.subscribe("t", group="g")(one), chosen(app, "h")),
            "of group 'h': there are g",
        ),
        (lambda app: app.pause("g"), "does not run"),
        (lambda app: load("tests.unit.no_such_module:app"), "there is no module"),
        (lambda app: load(f"{__name__}:nothing"), "has no 'nothing'"),
        (lambda app: load(f"{__name__}:MESSAGE"), "not an application"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(declare: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        declare(Txmsg("localhost:1"))


def test_routers_add_group_and_middleware_to_the_routers_they_include() -> None:
    app, outer, inner = Txmsg("localhost:1", group="of-app"), Router(), Router(group="of-inner")
    app.include(outer)
    outer.include(inner)
    inner.subscribe("a")(one)
    outer.subscribe("b")(one)
    app.subscribe("c", group="own")(one)
    around = [contextmanager(_note(name)) for name in ("inner", "app")]
    inner.middleware(around[0])
    app.middleware(around[1])
    found = {each.topics[0]: each for each in app.subscriptions}
    assert {topic: each.group for topic, each in found.items()} == {"a": "of-inner", "b": "of-app", "c": "own"}
    Handling(found["a"], {}).handle(MESSAGE)
    assert seen == ["app", "inner", "left inner", "left app"]


def _note(name: str) -> Callable[[ReceivedMessage], Iterator[None]]:
    def around(message: ReceivedMessage) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"left {name}")

    return around


def test_brokers_default_to_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_BROKERS", "notify:7700")
    assert shards_of(Txmsg().brokers) == [["notify:7700"]]
    assert shards_of(Txmsg("other:1").brokers) == [["other:1"]]


def test_outgoing_messages_pass_through_the_functions_in_order() -> None:
    functions = [
        lambda message: Message(message.topic, message.body + b"1"),
        lambda message: Message("u", message.body),
    ]
    assert Outgoing(functions, None).encrypt(Message("t", b"0")) == Message("u", b"01")
    with pytest.raises(MisuseError, match="return the Message"):
        Outgoing([lambda message: None], None).encrypt(Message("t", b""))  # type: ignore[list-item,return-value]


async def test_a_batch_is_as_large_as_allowed_and_each_message_is_settled_separately() -> None:
    handled: list[list[int]] = []

    async def handle_list(messages: list[ReceivedMessage]) -> list[Exception | None]:
        handled.append([message.n for message in messages])
        return [LookupError(str(message.n)) if message.n % 2 else None for message in messages]

    batches = Batches(3, 1, handle_list, name="t")
    added = [batches.add(ReceivedMessage("t", b"", n=n)) for n in range(7)]
    ends = await asyncio.gather(*added, return_exceptions=True)
    assert handled == [[0, 1, 2], [3, 4, 5], [6]]
    assert [str(end) if end else None for end in ends] == [None, "1", None, "3", None, "5", None]
    await batches.close()


async def test_a_batch_is_handled_in_the_context_of_its_first_message() -> None:
    request: ContextVar[int] = ContextVar("request")
    seen: list[tuple[int, int]] = []

    async def handle_list(messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(0)
        seen.append((messages[0].n, request.get()))

    batches = Batches(2, 1, handle_list, name="t")

    async def add(n: int) -> None:
        request.set(n)
        await batches.add(ReceivedMessage("t", b"", n=n))

    await asyncio.gather(*(add(n) for n in range(10)))
    await add(10)
    assert seen == [(n, n) for n in (0, 2, 4, 6, 8, 10)]
    await batches.close()


async def test_a_failing_batch_refuses_all_its_messages_with_separate_tracebacks() -> None:
    async def fail(messages: list[ReceivedMessage]) -> None:
        raise LookupError("no stock")

    batches = Batches(50, 1, fail, name="t")
    ends = await asyncio.gather(*(batches.add(MESSAGE) for _ in range(50)), return_exceptions=True)
    assert [str(end) for end in ends] == ["no stock"] * 50
    frames, traceback = 0, ends[0].__traceback__ if isinstance(ends[0], LookupError) else None
    while traceback is not None:
        frames, traceback = frames + 1, traceback.tb_next
    assert 0 < frames < 6
    with pytest.raises(MisuseError, match="2 results"):
        await Batches(1, 1, lambda _: asyncio.sleep(0, [None, None]), name="t").add(MESSAGE)


def test_a_rate_lets_a_burst_through_and_then_one_message_at_a_time() -> None:
    now = 0.0
    pace = HandlerRate(10, lambda: now)
    assert [pace.take_tokens() for _ in range(7)] == [0, 0, 0, 0, 0, 0.1, 0.2]
    now = 0.2
    assert pace.take_tokens() == pytest.approx(0.1)


async def test_a_rate_does_not_make_batches_shorter() -> None:
    router, lengths = Router(group="g"), []

    @router.subscribe("t", batch=20, concurrency=1, rate=100)
    async def take(messages: list[ReceivedMessage]) -> None:
        lengths.append(len(messages))

    app = Txmsg()
    app.include(router)
    handling = Handling(app.subscriptions[0], {})
    await asyncio.gather(*(handling.handle(MESSAGE) for _ in range(80)))
    assert lengths == [20, 20, 20, 20]  # 50 at once, then a batch whenever there is room for one message
    await handling.close()


class FakePace(HandlerRate):
    """A rate limit that has room or not, as the test defines."""

    is_open = False

    def __init__(self) -> None:
        super().__init__(1.0)
        self.taken: list[int] = []

    def wait_s(self) -> float:
        return 0.0 if self.is_open else 0.001

    def take_tokens(self, count: int = 1) -> float:
        self.taken.append(count)
        return 0.0


async def test_a_batch_starts_when_its_rate_allows_and_counts_all_its_messages() -> None:
    gate, handled = FakePace(), asyncio.Event()

    async def handle_list(messages: list[ReceivedMessage]) -> None:
        handled.set()

    batches = Batches(3, 1, handle_list, name="t", pace=gate)
    adding = asyncio.gather(*(batches.add(MESSAGE) for _ in range(5)))
    await asyncio.sleep(0.02)  # in which a batch that does not wait would begin
    assert not handled.is_set()
    gate.is_open = True
    await adding
    assert gate.taken == [3, 2]
    await batches.close()


def number() -> int:
    return 1


def other_number() -> int:
    return 2


class Unpicklable(Exception):
    """An exception that pickle can dump but not load, as many are."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def compute(message: ReceivedMessage, of: Annotated[int, Depends(number)], log: logging.Logger) -> None:
    """A handler that runs in another process."""
    extra = {"tenant": "acme", "why": Unpicklable("a", "b"), "lock": threading.Lock(), "items": [message.key]}
    log.info("computing %s with %d", message.key, of, extra=extra)
    log.debug("not logged")
    if message.body == b"die":
        os._exit(7)
    if message.body == b"bad":
        raise KeyError(message.key, message.headers["a"])


def test_a_handler_in_a_process_fails_as_in_a_thread_and_its_death_costs_one_message() -> None:
    processes = HandlerProcesses(compute)
    try:
        processes(MESSAGE)
        with pytest.raises(KeyError) as raised:
            processes(MESSAGE._replace(body=b"bad"))
        assert raised.value.args == ("k", "b")
        assert "  at compute, " in text_of(raised.value)
        with pytest.raises(HandlerProcessDied, match="with exit status 7"):
            processes(MESSAGE._replace(body=b"die"))
        processes(MESSAGE)
    finally:
        processes.close()
    with pytest.raises(MisuseError, match="closed"):
        processes(MESSAGE)


@pytest.mark.parametrize("left", ["program", "copy"])
def test_death_of_a_handler_process_is_noticed_while_its_children_live(left: str, tmp_path: Path) -> None:
    processes = HandlerProcesses(start_others)
    told = tmp_path / "pid"
    try:
        with pytest.raises(HandlerProcessDied, match="by SIGKILL"):
            processes(MESSAGE._replace(key=left, body=bytes(told)))
        os.kill(int(told.read_text()), 0)  # it lives
    finally:
        os.kill(int(told.read_text()), signal.SIGKILL)
        processes.close()


def test_children_of_a_handler_process_get_the_environment_of_a_shell(tmp_path: Path) -> None:
    processes = HandlerProcesses(start_others)
    told = tmp_path / "told"
    try:
        processes(MESSAGE._replace(key="look", body=bytes(told)))
        assert json.loads(told.read_text()) == ["", True, True]
        processes(MESSAGE._replace(key="multiprocessing", body=bytes(told)))
        assert int(told.read_text()) == -signal.SIGTERM
    finally:
        processes.close()


class Invalid(Reject):
    """An exception whose parameters differ from those of its base."""

    def __init__(self, field: str, *, line: int) -> None:
        super().__init__(f"line {line}: {field}")
        self.line = line
        self.lock = threading.Lock()


class Busy(Exception):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is busy")


def fail(message: ReceivedMessage) -> None:
    class Local(Reject):
        """A class that no module has."""

    match message.body:
        case b"later":
            raise RetryAfter(8, "the shop is closed")
        case b"invalid":
            raise Invalid("price", line=3)
        case b"busy":
            raise Busy("db", 5432)
        case b"local":
            raise Local(threading.Lock())
        case b"no file":
            raise FileNotFoundError(2, "No such file", "/x")
        case _:
            message.body.decode()


@pytest.mark.parametrize(
    ("body", "kind", "said", "failure"),
    [
        (b"later", RetryAfter, "the shop is closed", (8, False, False)),
        (b"invalid", Invalid, "line 3: price", (None, True, True)),
        (b"busy", Busy, "db:5432 is busy", (60, False, False)),
        (b"local", Reject, "Local: ", (None, True, True)),
        (b"no file", FileNotFoundError, "No such file", (None, True, True)),
        (b"\xff", UnicodeDecodeError, "invalid start byte", (None, False, False)),
    ],
)
def test_the_failure_policy_applies_to_exceptions_of_a_handler_process(
    processes_of_fail: HandlerProcesses,
    body: bytes,
    kind: type[Exception],
    said: str,
    failure: tuple[float | None, bool, bool],
) -> None:
    policy = Retry(by_type={Busy: Retry(delays_s=[60]), OSError: Reject})
    with pytest.raises(kind, match=said if kind is not Reject else None) as raised:
        processes_of_fail(MESSAGE._replace(body=body))
    assert type(raised.value) is kind
    assert said in text_of(raised.value)
    found = policy._failure_of(raised.value, 1, "")
    assert found is not None
    assert (found.delay_s, found.is_final, found.is_rejected) == failure
    if isinstance(raised.value, Invalid):
        assert raised.value.line == 3


@pytest.fixture(scope="module")
def processes_of_fail() -> Iterator[HandlerProcesses]:
    processes = HandlerProcesses(fail)
    yield processes
    processes.close()


def test_a_handler_process_logs_through_its_parent_and_takes_overrides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, __name__)
    processes = HandlerProcesses(compute, overrides={number: other_number})
    try:
        processes(MESSAGE)
    finally:
        processes.close()
    (record,) = [each for each in caplog.records if each.name == __name__]
    assert (record.getMessage(), record.levelname, vars(record)["tenant"]) == ("computing k with 2", "INFO", "acme")
    # An object that cannot be unpickled here costs no message.
    assert (vars(record)["why"], vars(record)["items"]) == ("Unpicklable('ab')", ["k"])
    assert vars(record)["lock"].startswith("<unlocked")
    assert record.process != os.getpid()


class Threshold:
    """A dependency with a value, of which another process has another object."""

    def __call__(self) -> int:
        return 3


def local() -> tuple[type, Callable[[], int]]:
    @dataclass
    class Local:
        n: int

    return Local, lambda: 3


LOCAL, CLOSURE = local()


@pytest.mark.parametrize(
    ("payload_types", "overrides", "said"),
    [
        ((), {number: CLOSURE}, "the replacement of a dependency of compute"),
        ((), {number: Threshold()}, "the replacement of a dependency of compute"),
        ((), {CLOSURE: number}, "a dependency of compute.* that is overridden"),
        ((), {Threshold(): number}, "a dependency of compute.* that is overridden"),
        ((LOCAL,), {}, "the type of the payloads of compute"),
    ],
)
def test_an_object_that_another_process_cannot_import_is_refused_before_handling(
    payload_types: tuple[type, ...], overrides: Any, said: str
) -> None:
    with pytest.raises(MisuseError, match=rf"{said}.* is .*could not import there"):
        HandlerProcesses(compute, payload_types, overrides)


async def test_start_refuses_an_override_that_another_process_cannot_import() -> None:
    app = Txmsg("localhost:1", group="g")
    app.on_startup(lambda: seen.append("started"))

    @app.subscribe("t")
    def other(message: ReceivedMessage) -> None: ...

    app.subscribe("computed", runs_in="processes")(compute)
    app.dependency_overrides[number] = CLOSURE
    with pytest.raises(MisuseError, match="could not import there"):
        await app.start()
    assert seen == []


def test_death_of_an_idle_process_costs_no_message_and_sigterm_is_left_to_the_parent() -> None:
    processes = HandlerProcesses(compute)
    try:
        processes(MESSAGE)
        (first,) = processes._all
        os.kill(first.pid, signal.SIGTERM)  # as systemd does, to all processes of a unit
        processes(MESSAGE)
        assert processes._all == {first}
        os.kill(first.pid, signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        processes(MESSAGE)
        assert first not in processes._all
    finally:
        processes.close()


def test_a_consumer_can_be_paused_before_its_start() -> None:
    consumer = Consumer("localhost:1", group="g")
    consumer.pause()
    consumer.resume()


# ---- topics that know their payloads


@dataclass
class Order:
    n: int


ORDERS = Topic("order", Order)


def received(n: int) -> ReceivedMessage[Order]:
    return ORDERS.received(ReceivedMessage("order", ORDERS.message(Order(n)).body))


def take(order: Order, message: ReceivedMessage[Order]) -> None:
    """A second handler that runs in another process."""
    raise KeyError(order.n, message.payload.n)


@pytest.mark.parametrize("runs_in", ["threads", "processes"])
async def test_a_handler_gets_the_payload_by_its_type(runs_in: Any) -> None:
    app = Txmsg(group="g")
    app.subscribe(ORDERS, runs_in=runs_in)(take)
    (subscription,) = app.subscriptions
    assert subscription.topics == ("order",)
    handling = Handling(subscription, {})
    try:
        with pytest.raises(KeyError) as raised:
            handling.handle(received(7))
        assert raised.value.args == (7, 7)
    finally:
        await handling.close()


async def test_a_batch_handler_gets_payloads() -> None:
    router = Router(group="g")

    @router.subscribe(ORDERS, batch=2)
    async def take_all(orders: list[Order]) -> None:
        seen.extend(orders)

    app = Txmsg()
    app.include(router)
    handle = Handling(app.subscriptions[0], {}).handle
    await asyncio.gather(handle(received(1)), handle(received(2)))
    assert seen == [Order(1), Order(2)]


def test_a_dict_parameter_gets_a_dict_payload() -> None:
    def take_any(payload: dict[str, Any]) -> None:
        seen.append(payload)

    topic = Topic("any", dict)
    Injected(take_any, payload_types=[dict]).on_thread(topic.received(ReceivedMessage("any", b'{"a": 1}')))
    assert seen == [{"a": 1}]


def test_a_payload_type_other_than_the_topics_is_refused_at_declaration() -> None:
    def of_order(order: Order) -> None: ...

    def of_message(message: ReceivedMessage[Order]) -> None: ...

    for handler in (of_order, of_message):
        with pytest.raises(MisuseError, match=r"annotate it with ReceivedMessage, str, logging"):
            Txmsg(group="g").subscribe(Topic("order", str))(handler)


def of_order(order: Order) -> None:
    seen.append(order)


def of_message(message: ReceivedMessage[Order]) -> None:
    seen.append(message.payload)


def of_field(price: int, note: str = "none") -> None:
    seen.append((price, note))


async def of_field_and_message(message: ReceivedMessage, log: logging.Logger, *, price: int) -> None:
    seen.append((message.key, log.name, price))


@pytest.mark.parametrize("runs_in", ["threads", "processes"])
@pytest.mark.parametrize("handler", [of_order, of_message, of_field])
async def test_annotations_declare_the_payload_of_a_topic_given_by_name(handler: Any, runs_in: Any) -> None:
    [handling] = handlings(handler, runs_in=runs_in)
    message = topic_of(handling).received(ReceivedMessage("order", b'{"price": 7, "n": 7, "more": 1}'))
    try:
        await asyncio.to_thread(handling.handle, message)
    finally:
        await handling.close()
    if runs_in == "threads":
        assert seen == [(7, "none")] if handler is of_field else [Order(7)]


async def test_payload_fields_are_passed_beside_message_and_logger_and_replace_defaults() -> None:
    [handling] = handlings(of_field_and_message)
    await handling.handle(topic_of(handling).received(ReceivedMessage("order", b'{"price": 1}', key="k")))
    [other] = handlings(of_field)
    other.handle(topic_of(other).received(ReceivedMessage("order", b'{"price": 2, "note": "x"}')))
    assert seen == [("k", __name__, 1), (2, "x")]


def test_a_handler_with_message_and_a_default_gets_no_payload() -> None:
    def take(message: ReceivedMessage, retries: int = 3) -> None:
        seen.append(retries)

    [handling] = handlings(take)
    assert handling.payloads == {"order": None}
    handling.handle(ReceivedMessage("order", b"no JSON"))
    assert seen == [3]


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b"{}", b'{"price": "7"}', b'{"price": true}'])
def test_a_message_without_the_declared_fields_is_invalid(body: bytes) -> None:
    [handling] = handlings(of_field)
    with pytest.raises(InvalidMessage, match=r"the body of this message of topic 'order' is not a valid fields of of_"):
        topic_of(handling).received(ReceivedMessage("order", body))


def handlings(handler: Any, **options: Any) -> list[Handling]:
    app = Txmsg(group="g")
    app.subscribe("order", **options)(handler)
    return [Handling(each, {}) for each in app.subscriptions]


def topic_of(handling: Handling) -> Topic[Any]:
    [(name, payload_type)] = handling.payloads.items()
    assert isinstance(payload_type, type)
    return Topic(name, payload_type)


# ---- results that must not be acknowledged


def caught() -> Iterator[int]:
    try:
        yield 1
    except ArithmeticError:
        seen.append("caught")


def test_an_exception_that_a_dependency_catches_still_refuses_the_message() -> None:
    def fail(message: ReceivedMessage, of: Annotated[int, Depends(caught)]) -> None:
        raise ZeroDivisionError

    async def fail_async(message: ReceivedMessage, of: Annotated[int, Depends(caught)]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Injected(fail).on_thread(MESSAGE)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Injected(fail_async).on_loop(MESSAGE))
    assert seen == ["caught", "caught"]


def test_a_def_handler_that_returns_a_coroutine_is_refused() -> None:
    async def work() -> None: ...

    def later(message: ReceivedMessage, of: Annotated[str, Depends(key)]) -> Any:
        return work()

    with pytest.raises(MisuseError, match="make it async def"):
        Injected(later).on_thread(MESSAGE)


async def work(done: str) -> str:
    return done


async def test_a_coroutine_that_a_dependency_returns_is_awaited_or_refused() -> None:
    def handle(of: Annotated[str, Depends(lambda: work("done"))]) -> None:
        seen.append(of)

    async def handle_async(of: Annotated[str, Depends(lambda: work("done"))]) -> None:
        seen.append(of)

    with pytest.raises(MisuseError, match="make it async def"):
        Injected(handle).on_thread(MESSAGE)
    await Injected(handle_async).on_loop(MESSAGE)
    assert seen == ["done"]


async def test_a_hook_that_returns_an_unawaited_object_is_refused() -> None:
    app = Txmsg()
    app.on_startup(lambda: work("done"))
    with pytest.raises(MisuseError, match="make it async def"):
        await app.start()


def test_middleware_passes_the_result_of_the_handler_on() -> None:
    app = Txmsg(group="g")
    app.middleware(contextmanager(_note("app")))
    app.subscribe("t")(lambda message: message.key)
    assert Handling(app.subscriptions[0], {}).handle(MESSAGE) == "k"


async def test_batch_middleware_runs_on_the_thread_of_the_handler_with_its_own_message() -> None:
    app = Txmsg(group="g")
    threads: list[threading.Thread] = []

    @app.middleware
    @contextmanager
    def around(message: ReceivedMessage) -> Iterator[None]:
        threads.append(threading.current_thread())
        if message.key == "not entered":
            raise LookupError
        try:
            yield
        except ValueError:
            seen.append(message.key)
            if message.key != "suppressed":
                raise

    @app.subscribe("t", batch=4, concurrency=1)
    def handle(messages: list[ReceivedMessage]) -> list[Exception | None]:
        threads.append(threading.current_thread())
        return [None if message.key == "handled" else ValueError() for message in messages]

    handling = Handling(app.subscriptions[0], {})
    messages = [MESSAGE._replace(key=key) for key in ("handled", "failed", "not entered", "suppressed")]
    ends = await asyncio.gather(*map(handling.handle, messages), return_exceptions=True)
    await handling.close()
    assert [type(end) for end in ends] == [type(None), ValueError, LookupError, type(None)]
    assert len(set(threads)) == 1
    assert threading.current_thread() not in threads
    assert sorted(seen) == ["failed", "suppressed"]


async def test_batch_middleware_sees_exceptions_of_the_handler() -> None:
    app = Txmsg(group="g")

    @app.middleware
    @contextmanager
    def around(message: ReceivedMessage) -> Iterator[None]:
        try:
            yield
        except KeyError:
            seen.append(message.key)
            raise

    @app.subscribe("t", batch=2)
    def handle(messages: list[ReceivedMessage]) -> None:
        raise KeyError

    handling = Handling(app.subscriptions[0], {})
    ends = await asyncio.gather(*(handling.handle(MESSAGE) for _ in range(2)), return_exceptions=True)
    await handling.close()
    assert [type(end) for end in ends] == [KeyError, KeyError]
    assert seen == ["k", "k"]


async def test_exceptions_of_any_kind_in_batch_results_refuse_their_messages() -> None:
    async def cancelled(messages: list[ReceivedMessage]) -> tuple[Any, ...]:
        return asyncio.CancelledError(), ValueError("no"), None

    batches = Batches(3, 1, cancelled, name="t")
    ends = await asyncio.gather(*(batches.add(MESSAGE) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends] == [RuntimeError, ValueError, type(None)]


async def test_a_stop_during_start_stops_the_app_and_a_second_start_does_not() -> None:
    app = Txmsg()
    app.on_startup(app.stop)
    async with asyncio.timeout(60):
        await app.run_async()
    running = asyncio.create_task(Txmsg.run_async(again := Txmsg(), started=(started := asyncio.Event()).set))
    await started.wait()
    with pytest.raises(MisuseError, match="runs already"):
        await again.run_async()
    assert not running.done()
    again.stop()
    await running


async def test_hooks_are_exited_in_the_task_that_entered_them() -> None:
    app = Txmsg()
    var = ContextVar("var", default="out")

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        task = asyncio.current_task()
        token = var.set("in")
        yield
        var.reset(token)  # raises in the context of another task
        seen.append(asyncio.current_task() is task)
        await app.close()  # does not wait for itself

    async with asyncio.timeout(60):
        async with app:
            assert var.get() == "in"
        app.on_startup(app.stop)
        await app.run_async()
    assert seen == [True, True]


async def test_a_second_close_waits_for_the_first_one() -> None:
    app = Txmsg()
    entered, go_on = asyncio.Event(), asyncio.Event()

    @app.on_shutdown
    async def leave() -> None:
        entered.set()
        await go_on.wait()
        seen.append("left")

    async def close_again() -> None:
        await app.close()
        seen.append("closed")

    async with asyncio.timeout(60):
        await app.start()
        first = asyncio.create_task(app.close())
        await entered.wait()
        second = asyncio.create_task(close_again())
        await asyncio.sleep(0)  # it has called
        go_on.set()
        await asyncio.gather(first, second)
    assert seen == ["left", "closed"]


async def test_a_close_during_start_runs_in_the_starting_task() -> None:
    app = Txmsg()
    entered, go_on = asyncio.Event(), asyncio.Event()

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        task = asyncio.current_task()
        entered.set()
        await go_on.wait()
        yield
        assert asyncio.current_task() is task
        seen.append("left")

    async def close() -> None:
        await app.close()
        seen.append("closed")

    async with asyncio.timeout(60):
        starting = asyncio.create_task(app.start())
        await entered.wait()
        closing = [asyncio.create_task(close()) for _ in range(2)]
        await asyncio.sleep(0)  # they have called
        go_on.set()
        await asyncio.gather(starting, *closing)
        assert seen == ["left", "closed", "closed"]
        await app.start()  # the former start is over
        assert len(seen) == 3
        await app.close()


async def test_a_start_hook_that_closes_the_app_does_not_deadlock() -> None:
    app = Txmsg()
    app.on_startup(app.close)
    app.on_startup(lambda: seen.append("started"))
    app.on_shutdown(lambda: seen.append("left"))
    async with asyncio.timeout(60):
        async with app:
            assert seen == ["started", "left"]
        await app.run_async()
    assert seen == ["started", "left"] * 2


async def test_errors_of_shutdown_hooks_are_logged_and_raised_for_the_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Txmsg()
    app.on_shutdown(lambda: 1 / 0)
    app.on_shutdown(app.close)  # by the task that closes, which does not wait for itself
    begun = asyncio.Event()

    @app.on_shutdown
    async def begin() -> None:
        begun.set()

    async def run() -> None:
        async with app:
            in_handler.set(True)
            for _ in range(2):
                await app.close()
            in_handler.set(False)
            await begun.wait()

    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await run()
        await app.close()  # it was told
    (told,) = [each for each in caplog.records if "closing the application" in each.getMessage()]
    assert told.exc_info is not None
    assert told.exc_info[0] is ZeroDivisionError


async def test_every_shutdown_hook_runs_even_if_another_fails() -> None:
    app = Txmsg()
    app.on_shutdown(lambda: seen.append("first"))
    app.on_shutdown(lambda: 1 / 0)
    await app.start()
    with pytest.raises(ZeroDivisionError):
        await app.close()
    assert seen == ["first"]


@dataclass
class Placed:
    order_id: int


def test_a_payload_that_needs_a_missing_package_is_refused_at_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    app = Txmsg(group="g")
    with pytest.raises(MisuseError, match="the dataclass Placed needs the package msgspec"):

        @app.subscribe("t")
        def handle(order: Placed) -> None: ...
