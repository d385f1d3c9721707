"""`@transactional_message`: a function whose message is delivered if and only if its local transaction committed.

Checks at decoration what can be checked then, so that a mistake shows at import, not at the first lost message. The
flows themselves are in flow_async.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from txmsg.checker.connections.opening import package_of
from txmsg.checker.fence import AsyncFenceStore, FenceCheckListener, FenceStore
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.flows import flow, flow_async
from txmsg.client.flows.body import Key, MessagePlan
from txmsg.client.flows.outer import refuse_outer_transaction
from txmsg.client.outbox import flow as outbox_flow
from txmsg.client.outbox import flow_async as outbox_flow_async
from txmsg.client.outbox.options import Outbox, WhenAway, outbox_of
from txmsg.client.producer import Producer
from txmsg.errors import MisuseError, shown
from txmsg.message import Message
from txmsg.message.typed.topic import Topic
from txmsg.runtime.user_function import check_takes, finished, finished_async, name_of

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Callable[..., Coroutine[Any, Any, Any]])
S_co = TypeVar("S_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)
Owner = TypeVar("Owner")

Build = Callable[..., Message | Sequence[Message] | bytes] | None
HalfTime = Literal["first", "alongside"]
"""The half message is stored before the function runs ("first"), or while it runs ("alongside")."""


class SessionDecorator(Protocol[S_co]):
    """Removes the session parameter: callers do not pass it. S is the session, or the connection."""

    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Owner, S_co, P], R], /) -> Callable[Concatenate[Owner, P], R]: ...


class _AsyncSessionDecorator(Protocol[A_co]):
    """The same for coroutine functions."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[A_co, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, A_co, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]]: ...


class _TransactionalDecorator(Protocol):
    """Without a session the signature stays as it is."""

    def __call__(self, function: F, /) -> F: ...


class _AsyncTransactionalDecorator(Protocol):
    """The same for coroutine functions."""

    def __call__(self, function: C, /) -> C: ...


@overload
def transactional_message(
    producer: Producer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: Callable[[], AbstractContextManager[S_co]],
    message: Build = None,
    when_away: WhenAway = "raise",
    wait: bool = False,
    half: HalfTime = "first",
) -> SessionDecorator[S_co]: ...
@overload
def transactional_message(
    producer: AsyncProducer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: Callable[[], AbstractAsyncContextManager[A_co] | Awaitable[A_co]],
    message: Build = None,
    when_away: WhenAway = "raise",
    wait: bool = False,
    half: HalfTime = "first",
) -> _AsyncSessionDecorator[A_co]: ...
@overload
def transactional_message(
    producer: Producer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: FenceStore[S_co],
    message: Build = None,
    wait: bool = False,
    half: HalfTime = "first",
) -> SessionDecorator[S_co]: ...
@overload
def transactional_message(
    producer: AsyncProducer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: AsyncFenceStore[A_co],
    message: Build = None,
    wait: bool = False,
    half: HalfTime = "first",
) -> _AsyncSessionDecorator[A_co]: ...
@overload
def transactional_message(
    producer: Producer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: None = None,
    message: Build = None,
    wait: bool = False,
) -> _TransactionalDecorator: ...
@overload
def transactional_message(
    producer: AsyncProducer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: None = None,
    message: Build = None,
    wait: bool = False,
) -> _AsyncTransactionalDecorator: ...
def transactional_message(
    producer: Producer | AsyncProducer,
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    session: Callable[[], Any] | FenceStore[Any] | AsyncFenceStore[Any] | None = None,
    message: Build = None,
    when_away: WhenAway = "raise",
    wait: bool = False,
    half: HalfTime = "first",
) -> Any:
    """Decorate a function whose message is delivered if and only if its transaction commits.

    The half message is stored before the function runs, and its outcome is sent after the commit, without waiting for
    the reply: when the call returns, the message is certain to be delivered, and on its way. Without session= the
    function manages its transaction itself. Then do not call it inside an outer transaction, which may roll back. Outer
    transactions that can be detected are refused: Django's `transaction.atomic()`, and a Session or Connection among
    the arguments whose transaction was begun by the caller.

    producer: a Producer for `def`, an AsyncProducer for `async def`; it needs a check_listener.
    topic, tag: of the message. key: the name of the argument that is the message's key, or a function of the
    arguments; ordering_key the same, see `Message`. message: a function of the arguments that returns the body as
    bytes, or a Message, or several; default: the arguments as a JSON object. With a `Topic` as topic, the payload is
    the only argument if that has its type, or else is built from the arguments; keys are the Topic's.
    session: a sessionmaker or async_sessionmaker. The function's first parameter is then a session, which callers leave
    out. It is opened for the call, the fence row is its first statement, it is committed when the function returns and
    rolled back when it raises. Committing inside raises MisuseError; savepoints are allowed. Returned objects are not
    expired. Or a function that opens a connection of psycopg, asyncpg, sqlite3, aiosqlite, PyMySQL or aiomysql, or a
    block with one, as `pool.connection` does: then the first parameter is that connection. Or a FenceStore. Without
    session= the user's own listener answers checks.
    when_away: with "outbox" (or an `Outbox`) the call continues if no broker stores the half message in time: its
    messages are written to the outbox in the function's transaction, and relayed later. Needs session= and a fence.
    wait: True to return only when the broker has the outcome, so that consumers may have the message already.
    half: "alongside" has the half message travel while the function runs; the commit waits until it is stored. The call
    is shorter by that time, and its transaction and locks may be longer by it. If no broker stores the half message,
    the transaction is rolled back and BrokerUnavailable is raised, but the function has run: take it where all that the
    function does is in its transaction. Needs session=, and no when_away=.

    Besides the function's own exceptions (unchanged), a call raises TypeError and InvalidMessage before anything is
    done; BrokerUnavailable if the half message could not be stored: the function has not run then; TransactionRefused
    if the transaction was so late that its check was answered ROLLBACK. If the outcome cannot be reported to a broker,
    this is logged, not raised: the check-back resolves the transaction.
    """

    if not isinstance(producer, Producer | AsyncProducer):
        raise MisuseError(
            f"@transactional_message was given {shown(producer)} as its producer: write "
            "@transactional_message(producer, topic=...) with a Producer, or with an AsyncProducer for async def"
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # At decoration, so that a mistake fails the import: found at a call it would be found in production.
        _check_kinds(function, producer, session)
        signature, receiver = signature_of_calls(function, drop_session=session is not None)
        plan = MessagePlan(
            owner=name_of(function),
            signature=signature,
            topic=topic,
            key=key,
            ordering_key=ordering_key,
            tag=tag,
            builder=message,
            receiver=receiver,
            gives_session=session is not None,
        )
        outbox = outbox_of(when_away, plan.owner)
        _check_half(plan.owner, half, session, outbox)
        if outbox is not None:
            _check_outbox(plan.owner, producer, session)
        wrapper = _wrapper(function, producer, session, plan, _Flows.of(half, outbox, wait=wait))
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper

    return decorate


class _Flows(NamedTuple):
    """The functions that run the calls of one decorated function in a session, and whether they wait for the last
    reply."""

    in_session: Callable[..., Any]
    in_session_async: Callable[..., Any]
    wait: bool

    @classmethod
    def of(cls, half: HalfTime, outbox: Outbox | None, *, wait: bool) -> Self:
        if outbox is not None:
            return cls(
                functools.partial(outbox_flow.run_in_session, outbox=outbox),
                functools.partial(outbox_flow_async.run_in_session, outbox=outbox),
                wait,
            )
        alongside = half == "alongside"
        return cls(
            functools.partial(flow.run_in_session, alongside=alongside),
            functools.partial(flow_async.run_in_session, alongside=alongside),
            wait,
        )


def _wrapper(
    function: Callable[..., Any],
    producer: Producer | AsyncProducer,
    session: Callable[[], Any] | FenceStore[Any] | AsyncFenceStore[Any] | None,
    plan: MessagePlan,
    flows: _Flows,
) -> Callable[..., Any]:
    # Where the session goes: first, or after self.
    at = 0 if plan.receiver is None else 1

    if isinstance(producer, AsyncProducer):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await finished_async(plan.owner, await function(*args, **kwargs))

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            messages = plan.messages(args, kwargs)
            if session is None:
                refuse_outer_transaction(plan.owner, args, kwargs)
                return await flow_async.run(producer, messages, lambda: run_async(*args, **kwargs), wait=flows.wait)
            return await flows.in_session_async(
                producer,
                messages,
                session,
                lambda opened: run_async(*args[:at], opened, *args[at:], **kwargs),
                owner=plan.owner,
                wait=flows.wait,
            )

        return call_async

    def run(*args: Any, **kwargs: Any) -> Any:
        return finished(plan.owner, function(*args, **kwargs))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        messages = plan.messages(args, kwargs)
        if session is None:
            refuse_outer_transaction(plan.owner, args, kwargs)
            return flow.run(producer, messages, lambda: run(*args, **kwargs), wait=flows.wait)
        return flows.in_session(
            producer,
            messages,
            session,
            lambda opened: run(*args[:at], opened, *args[at:], **kwargs),
            owner=plan.owner,
            wait=flows.wait,
        )

    return call


def _check_half(name: str, half: object, session: object, outbox: Outbox | None) -> None:
    if half == "first":
        return
    if half != "alongside":
        raise MisuseError(f'half={shown(half)} of {name} is neither "first" nor "alongside": give one of these')
    if session is None:
        raise MisuseError(
            f'{name} has half="alongside" and no session=: the commit has to wait for the half message, so it has to '
            "be txmsg's: give session= with a sessionmaker"
        )
    if outbox is not None:
        raise MisuseError(
            f'{name} has half="alongside" and when_away=: whether a message is kept in the outbox is decided before '
            "the function runs; leave one of them out"
        )


def _check_outbox(name: str, producer: Producer | AsyncProducer, session: object) -> None:
    if session is None:
        raise MisuseError(
            f"{name} has when_away= and no session=: the outbox is written in the function's own transaction, so give "
            "session= with a sessionmaker"
        )
    producer._use_outbox()


def check_function(function: Callable[..., Any]) -> str:
    """Return the name of a decorated function. Raises MisuseError for one that does not run when it is called."""
    name: str = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise MisuseError(
            f"{name} is not a function: put @transactional_message(...) directly above `def`, below other decorators"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise MisuseError(f"{name} is a generator, which has not run yet when it returns: use a plain function")
    return name


def _check_kinds(function: Callable[..., Any], producer: Producer | AsyncProducer, session: object) -> None:
    name = check_function(function)
    is_async = inspect.iscoroutinefunction(function)
    if is_async != isinstance(producer, AsyncProducer):
        raise MisuseError(
            f"{name} is {'async def' if is_async else 'def'}, the producer is a {type(producer).__name__}: "
            "give AsyncProducer for async def, Producer for def"
        )
    if is_async and isinstance(session, sessionmaker | scoped_session):
        raise MisuseError(f"{name} is async def: session= must be an async_sessionmaker")
    if not is_async and isinstance(session, async_sessionmaker):
        raise MisuseError(f"{name} is def: session= must be a sessionmaker, not an async_sessionmaker")
    if isinstance(session, Session | AsyncSession):
        raise MisuseError(f"session= of {name} is one session: give the sessionmaker, each call opens its own")
    if package_of(session) is not None:
        raise MisuseError(f"session= of {name} is one connection: give a function that opens one, each call its own")
    if isinstance(session, Engine | AsyncEngine | type):
        maker = "async_sessionmaker" if is_async else "sessionmaker"
        raise MisuseError(f"session= of {name} is {shown(session)}: give the sessionmaker: session={maker}(engine)")
    listener = producer.check_listener
    if isinstance(session, FenceStore | AsyncFenceStore) or isinstance(listener, FenceStore | AsyncFenceStore):
        _check_store(name, listener, session, AsyncFenceStore if is_async else FenceStore)
        return
    if session is not None:
        check_takes(f"session= of {name}", session)
    if producer.check_listener is None:
        raise MisuseError(
            f"{name} needs a producer with a check_listener, which resolves a transaction whose outcome was lost: "
            "give it FenceCheckListener(engine)"
        )
    if session is None and isinstance(producer.check_listener, FenceCheckListener):
        raise MisuseError(
            f"{name} is decorated without session=, so no fence row is written and FenceCheckListener would answer "
            "ROLLBACK for every transaction: give session=, or a CheckMessageListener of your own"
        )


def _check_store(name: str, listener: object, session: object, kind: type) -> None:
    if session is not listener or not isinstance(session, kind):
        raise MisuseError(
            f"session= of {name} is {shown(session)}, and check_listener= of its producer is {shown(listener)}: give "
            f"both the same {kind.__name__}, which writes the row that it is asked about"
        )


def signature_of_calls(function: Callable[..., Any], *, drop_session: bool) -> tuple[inspect.Signature, str | None]:
    """Return the signature without the session, and the name of `self` if there is one."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    receiver = None
    if parameters and parameters[0].name in ("self", "cls") and "." in function.__qualname__:
        receiver = parameters[0].name
    if not drop_session:
        return signature, receiver
    at = 0 if receiver is None else 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) <= at or parameters[at].kind not in positional:
        raise MisuseError(f"{function.__qualname__} has no first parameter for the session, which session= gives it")
    del parameters[at]
    return signature.replace(parameters=parameters), receiver
