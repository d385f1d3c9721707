"""The parameters of a handler, and the sources of their values. Knows neither consumers nor brokers.

A parameter says it by its annotation: the message, its payload, a logger, or `Annotated[T, Depends(f)]`: what `f`
returns, or yields for the time of the call. `f` has parameters of the same kinds. FastAPI's Depends is taken as ours.
A session and a Transaction are those of the transaction that the handler then runs in. Where the topic is a name, the
annotations say what its payloads are: one model, or fields of a JSON object.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints, is_typeddict

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from txmsg.client.app.returned import names_messages, send_returned, send_returned_async
from txmsg.client.flows.transaction import Transaction
from txmsg.consumer.subscriptions import handled
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage
from txmsg.message.typed.codecs import is_model
from txmsg.message.typed.fields import fields_type, is_field
from txmsg.runtime.logs import logger_of_application
from txmsg.runtime.user_function import finished, finished_async, name_of

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""Replacements of dependencies, by the dependency: for tests."""
NO_OVERRIDES: Final[Overrides] = {}


@dataclass(frozen=True, slots=True)
class Depends:
    """Names the function that provides the value of a handler's parameter, in `Annotated[T, Depends(f)]`.

    f: returns the value, or yields it once: the code after the `yield` runs when the handler is done, and sees its
    exception. It is called once per message, even if several parameters depend on it. Its own parameters follow the
    rules of handlers. An `async def` handler may depend on functions of both kinds, and calls `def` functions on the
    loop; a `def` handler may depend on `def` functions only.
    """

    dependency: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.dependency):
            raise MisuseError(f"Depends({shown(self.dependency)}) is given no function: write Depends(open_session)")


class _Source(Enum):
    """The source of a parameter's value, if it is not a dependency."""

    MESSAGE = "message"
    PAYLOAD = "payload"
    LOGGER = "logger"
    SESSION = "session"
    TRANSACTION = "tx"


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the payload, which is a JSON object."""

    name: str


@dataclass(frozen=True, slots=True)
class _InjectedCall:
    """A function with the source of each of its parameters."""

    of: Callable[..., Any]
    call: Callable[..., Any]
    """The function; if it yields, a factory of a context manager around it."""
    kind: str
    """Kind of the function: "def", "async def", "yield" or "async yield"."""
    sources: Mapping[str, _Source | _Field | _InjectedCall]
    logger: logging.Logger


_Known = dict[Callable[..., Any] | _Source, Any]
"""Values of one call: results of functions that several parameters depend on, and values that belong to its
transaction."""


def _of_transaction(session: Any, tx: Transaction | None) -> _Known:
    return {_Source.SESSION: session, _Source.TRANSACTION: tx}


class Injected:
    """A handler whose parameters are filled from a message, or from a list of them.

    is_batch: it is called with lists. given: the number of arguments that it gets before these, such as a session.
    payload_types: of the messages, if their topics know them; otherwise the annotations decide. overrides: replacements
    of dependencies. Raises MisuseError for a parameter whose annotation does not determine its source.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        is_batch: bool = False,
        given: int = 0,
        payload_types: Sequence[type] = (),
        overrides: Overrides = NO_OVERRIDES,
    ) -> None:
        self._is_batch = is_batch
        self._given = given
        self.payload_types = tuple(payload_types) or self._annotated_payload(handler)
        """Types of the payloads: several if the messages are of several topics. None: neither a topic nor a parameter
        determines one."""
        self.takes_payload = False
        """True if it asks for the payload, or for a field of it."""
        self._overrides = overrides
        self.overridden: dict[Callable[..., Any], Callable[..., Any]] = {}
        """The overrides that this handler uses."""
        self.sessions: set[type] = set()
        """The types of sessions that it, or a dependency, asks for."""
        kind = _kind_of(handler)
        self.returns_messages = kind.endswith("yield") or names_messages(_returned(handler))
        """True if its annotation says that it returns or yields messages, which are sent."""
        self._asks_for_tx = False
        self._call = self._plan(handler, ())
        self.is_coroutine = kind.startswith("async")
        self.is_plain = _takes_message_by_place(handler, given, list(self._call.sources.values()))
        """True if it is called with the message alone, as handlers of consumers are."""

    @property
    def sends(self) -> bool:
        """True if it returns messages, or if it or a dependency asks for `tx`."""
        return self.returns_messages or self._asks_for_tx

    @property
    def is_in_transaction(self) -> bool:
        """True if it needs a transaction of the application's database, because of its parameters or of the messages
        that it sends."""
        return self.sends or bool(self.sessions)

    @property
    def why_in_transaction(self) -> str:
        """The reason why it needs a transaction, for errors."""
        return "asks for a session or tx" if self.sessions or self._asks_for_tx else "returns messages to send"

    # ---- reading it

    def _annotated_payload(self, handler: Callable[..., Any]) -> tuple[type, ...]:
        """Return the type of the payloads by the handler's parameters: their model, or an object with fields of their
        names."""
        fields: dict[str, tuple[Any, bool]] = {}
        for name, parameter, annotation in _parameters(handler, self._given):
            wanted = self._item_of(_bare(annotation))
            if get_origin(wanted) is ReceivedMessage:
                [wanted] = get_args(wanted)
            if is_model(wanted):
                return (wanted,)
            if len(models := [each for each in _choices_of(wanted) if is_model(each)]) > 1:
                kinds = ", ".join(f'Topic("...", {each.__name__})' for each in models)
                raise MisuseError(
                    f"parameter {name!r} of {name_of(handler)} is {' | '.join(each.__name__ for each in models)}, and "
                    f"its topics are names, which do not say which: give @subscribe a Topic for each, as in {kinds}"
                )
            if _dependency_in(annotation) is None and not self._is_batch and is_field(annotation):
                fields[name] = annotation, parameter.default is parameter.empty
        is_asked_for = any(is_required for _, is_required in fields.values())
        return (fields_type(name_of(handler), fields),) if is_asked_for else ()

    def _plan(self, function: Callable[..., Any], above: tuple[Callable[..., Any], ...]) -> _InjectedCall:
        # A cycle would recurse without end at the first message; found here, it fails when the handler is declared.
        if function in above:
            raise MisuseError(f"{name_of(function)} depends on itself: take one of the two Depends out")
        path = (*above, function)
        kind = _kind_of(function)
        sources: dict[str, _Source | _Field | _InjectedCall] = {}
        for name, parameter, annotation in _parameters(function, 0 if above else self._given):
            source = self._source_of(function, name, parameter, annotation, is_first=not sources and not above)
            if isinstance(source, _Source | _Field):
                sources[name] = source
                self.takes_payload |= source is _Source.PAYLOAD or isinstance(source, _Field)
                self._asks_for_tx |= source is _Source.TRANSACTION
                if source is _Source.SESSION:
                    self.sessions.add(_bare(annotation))
            elif source is not None:
                if source in self._overrides:
                    self.overridden[source] = self._overrides[source]
                sources[name] = call = self._plan(self.overridden.get(source, source), path)
                if call.kind.startswith("async") and not kind.startswith("async"):
                    raise MisuseError(
                        f"{name_of(function)} is def, and depends on {name_of(call.of)}, which is async: make the "
                        "first one async def, or the second one def"
                    )
        logger = logger_of_application(getattr(function, "__module__", None) or "txmsg.client.app")
        if not above and kind.endswith("yield"):
            kind = "def"  # its body runs where what it returns is sent
        return _InjectedCall(function, _entered(function, kind), kind, sources, logger)

    def _source_of(
        self,
        function: Callable[..., Any],
        name: str,
        parameter: inspect.Parameter,
        annotation: Any,
        *,
        is_first: bool,
    ) -> _Source | _Field | Callable[..., Any] | None:
        """Return the source of a parameter; a function is a dependency; None keeps the parameter's default."""
        dependency = _dependency_in(annotation)
        if dependency is not None:
            return dependency
        annotation = _bare(annotation)
        if (of_type := _source_by_type(annotation)) is not None:
            return of_type
        wanted = self._item_of(annotation)
        if self._is_message(wanted) or (wanted is parameter.empty and is_first):  # as the handler of a consumer
            return _Source.MESSAGE
        if self._is_payload(wanted):
            return _Source.PAYLOAD
        if name in self._fields():
            return _Field(name)
        if parameter.default is not parameter.empty:
            return None
        payload = " | ".join(each.__name__ for each in self.payload_types)
        wanted_types = ["ReceivedMessage", payload] if payload else ["ReceivedMessage"]
        raise MisuseError(
            f"parameter {name!r} of {name_of(function)} is {self._unknown(annotation)}: annotate it with "
            f"{', '.join(f'list[{each}]' if self._is_batch else each for each in wanted_types)}, logging.Logger, or "
            f"Annotated[T, Depends(f)]{self._session_hint(is_first=is_first)}"
        )

    def _fields(self) -> Mapping[str, Any]:
        """Return the fields of the payloads, if their type names each."""
        several = self.payload_types
        return get_type_hints(several[0]) if len(several) == 1 and is_typeddict(several[0]) else {}

    def _session_hint(self, *, is_first: bool) -> str:
        if not is_first or self._given:
            return ""
        return "; if it is the session of @idempotent, put @idempotent below @subscribe"

    def _is_message(self, annotation: Any) -> bool:
        if get_origin(annotation) is ReceivedMessage and self._is_payload(*get_args(annotation)):
            self.takes_payload = True
            return True
        return annotation is ReceivedMessage

    def _is_payload(self, annotation: Any) -> bool:
        """Return True for the type of the payloads, also for `dict[str, Any]` if they are `dict`. A union has to have
        the types of all topics."""
        choices = _choices_of(annotation)
        return bool(self.payload_types) and {*choices, *map(get_origin, choices)}.issuperset(self.payload_types)

    def _item_of(self, annotation: Any) -> Any:
        """Return the annotation of one item, for a handler of lists."""
        if not self._is_batch or annotation is inspect.Parameter.empty:
            return annotation
        if get_origin(annotation) is list:
            return get_args(annotation)[0]
        return None

    def _unknown(self, annotation: Any) -> str:
        if annotation is inspect.Parameter.empty:
            return "not annotated"
        if self._is_batch:
            return f"annotated with {shown(annotation)}, no list, though batch= gives lists"
        return f"annotated with {shown(annotation)}"

    # ---- calling it

    def on_thread_in(self, session: Any, tx: Transaction | None, message: Any) -> Any:
        """Call a `def` handler inside a transaction, and send the messages that it returns."""
        finish = handled if tx is None else partial(send_returned, tx)
        return self._on_thread((message,), _of_transaction(session, tx), finish)

    def on_thread(self, *given_and_message: Any) -> Any:
        """Call a `def` handler with its dependencies. The last argument is the message, or the list of them."""
        return self._on_thread(given_and_message, {}, handled)

    def _on_thread(self, given_and_message: Sequence[Any], known: _Known, finish: Callable[[str, Any], Any]) -> Any:
        """Call the handler. known: values that exist already. finish: gets the result before dependencies are
        exited."""
        failed: BaseException | None = None
        with ExitStack() as entered:
            try:
                return finish(name_of(self._call.of), _called(self._call, given_and_message, known, entered))
            except BaseException as exc:
                failed = exc
                raise
        raise _swallowed(failed)

    async def on_loop_in(self, session: Any, tx: Transaction | None, message: Any) -> Any:
        """Call an `async def` handler inside a transaction, as `on_thread_in`."""
        finish = _handled_async if tx is None else partial(send_returned_async, tx)
        return await self._on_loop((message,), _of_transaction(session, tx), finish)

    async def on_loop(self, *given_and_message: Any) -> Any:
        """Call an `async def` handler with its dependencies, as `on_thread`."""
        return await self._on_loop(given_and_message, {}, _handled_async)

    async def _on_loop(
        self, given_and_message: Sequence[Any], known: _Known, finish: Callable[[str, Any], Awaitable[Any]]
    ) -> Any:
        failed: BaseException | None = None
        async with AsyncExitStack() as entered:
            try:
                result = await _called_async(self._call, given_and_message, known, entered)
                return await finish(name_of(self._call.of), result)
            except BaseException as exc:
                failed = exc
                raise
        raise _swallowed(failed)


async def _handled_async(name: str, result: Any) -> Any:
    return handled(name, await finished_async(name, result))


def _swallowed(failed: BaseException | None) -> BaseException:
    """Return the error to raise if a dependency suppressed an exception: the message was not handled.

    failed: the handler's exception; None: another dependency raised it after the handler had returned.
    """
    return failed or RuntimeError("a dependency failed when the handler had returned, and another one caught that")


def _called(call: _InjectedCall, given_and_message: Sequence[Any], known: _Known, entered: ExitStack) -> Any:
    if call.of in known:
        return known[call.of]
    *given, message = given_and_message
    values = {
        name: _called(source, [message], known, entered)
        if isinstance(source, _InjectedCall)
        else _value(source, message, call, known)
        for name, source in call.sources.items()
        if not _is_left_out(source, message)
    }
    result = call.call(*given, **values)
    if call.kind == "yield":
        result = entered.enter_context(result)
    elif inspect.iscoroutine(result):
        finished(name_of(call.of), result)
    known[call.of] = result
    return result


async def _called_async(
    call: _InjectedCall, given_and_message: Sequence[Any], known: _Known, entered: AsyncExitStack
) -> Any:
    if call.of in known:
        return known[call.of]
    *given, message = given_and_message
    values: dict[str, Any] = {}
    for name, source in call.sources.items():
        if isinstance(source, _InjectedCall):
            values[name] = await _called_async(source, [message], known, entered)
        elif not _is_left_out(source, message):
            values[name] = _value(source, message, call, known)
    result = call.call(*given, **values)
    match call.kind:
        case "async def":
            result = await result
        case "yield":
            result = entered.enter_context(result)
        case "async yield":
            result = await entered.enter_async_context(result)
        case "def" if inspect.iscoroutine(result):
            result = await result
    known[call.of] = result
    return result


def _is_left_out(source: _Source | _Field | _InjectedCall, message: Any) -> bool:
    """Return True if the payload lacks the field, so that the parameter keeps its default."""
    return isinstance(source, _Field) and source.name not in message.payload


def _value(source: _Source | _Field, message: Any, call: _InjectedCall, known: _Known) -> Any:
    match source:
        case _Field(name):
            return message.payload[name]
        case _Source.MESSAGE:
            return message
        case _Source.PAYLOAD:
            return [each.payload for each in message] if isinstance(message, list) else message.payload
        case _Source.LOGGER:
            return call.logger
        case _Source.SESSION | _Source.TRANSACTION:
            return known[source]


def _source_by_type(annotation: Any) -> _Source | None:
    """Return the source of a parameter whose type alone determines it, or None."""
    if annotation is logging.Logger:
        return _Source.LOGGER
    if annotation is Transaction:
        return _Source.TRANSACTION
    if isinstance(annotation, type) and issubclass(annotation, Session | AsyncSession):
        return _Source.SESSION
    return None


def _kind_of(function: Callable[..., Any]) -> str:
    is_object = not (inspect.isroutine(function) or isinstance(function, type | functools.partial))
    body: Any = type(function).__call__ if is_object else function
    if inspect.isasyncgenfunction(body):
        return "async yield"
    if inspect.isgeneratorfunction(body):
        return "yield"
    return "async def" if inspect.iscoroutinefunction(body) else "def"


def _entered(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    match kind:
        case "yield":
            return contextmanager(function)
        case "async yield":
            return asynccontextmanager(function)
    return function


def _parameters(function: Callable[..., Any], given: int) -> list[tuple[str, inspect.Parameter, Any]]:
    """Return name, parameter and evaluated annotation of each parameter after the given ones. Raises MisuseError."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise MisuseError(f"{name_of(function)} does not say its parameters: wrap it in a def") from None
    body: Any = function
    if isinstance(function, type):
        body = body.__init__
    elif not inspect.isroutine(body):
        body = type(function).__call__
    filled = list(signature.parameters.items())[given:]
    hints = hints_of(function, inspect.unwrap(body), [name for name, _ in filled])
    found = []
    for name, parameter in filled:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise MisuseError(f"parameter {name!r} of {name_of(function)} is positional only: take the / out")
        found.append((name, parameter, hints.get(name, parameter.empty)))
    return found


def _returned(function: Callable[..., Any]) -> Any:
    """Return the evaluated return annotation; None if it cannot be evaluated: such a function does not send by
    returning."""
    body: Any = function if inspect.isroutine(function) else type(function).__call__
    try:
        return hints_of(function, inspect.unwrap(body), ["return"]).get("return")
    except MisuseError:  # parameters must be readable; the rest may be for a type checker alone
        return None


def hints_of(function: Callable[..., Any], body: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the evaluated annotations of these parameters. Others may name types that only a type checker imports."""

    def read() -> None: ...

    try:
        annotations = getattr(body, "__annotations__", {})
        read.__annotations__ = {name: annotations[name] for name in names if name in annotations}
        return get_type_hints(read, getattr(body, "__globals__", {}), include_extras=True)
    except (NameError, TypeError) as exc:
        raise MisuseError(
            f"the annotations of {name_of(function)} cannot be read ({exc}): they must be names of its module, "
            "imported when it runs, not under TYPE_CHECKING alone"
        ) from exc


def _bare(annotation: Any) -> Any:
    """Return the type inside Annotated."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _choices_of(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _takes_message_by_place(
    function: Callable[..., Any], given: int, sources: Sequence[_Source | _Field | _InjectedCall]
) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if not sources:  # as a wrapper that passes on what it gets
        return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    return sources == [_Source.MESSAGE] and parameters[given].kind is not inspect.Parameter.KEYWORD_ONLY


def _dependency_in(annotation: Any) -> Callable[..., Any] | None:
    """Return the function that Annotated names, by our Depends or by FastAPI's; None if there is none."""
    if get_origin(annotation) is not Annotated:
        return None
    for each in get_args(annotation)[1:]:
        is_fastapis = type(each).__module__ == "fastapi.params" and callable(getattr(each, "dependency", None))
        if isinstance(each, Depends) or is_fastapis:
            dependency: Callable[..., Any] = each.dependency
            return dependency
    return None
