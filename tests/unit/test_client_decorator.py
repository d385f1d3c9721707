"""Valid uses of @transactional_message and the resulting signature: mypy reads `assert_type`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage, TransactionState

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, assert_type

sessions = sessionmaker()
async_sessions = async_sessionmaker()


class OwnListener:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


def plain(user_id: int, email: str = "e") -> int:
    return user_id


async def plain_async(user_id: int) -> int:
    return user_id


def with_session(session: Session, user_id: int, *, email: str = "e") -> int:
    return user_id


async def with_async_session(session: AsyncSession, user_id: int) -> int:
    return user_id


@pytest.fixture
def fenced(tmp_path: Path) -> Iterator[Producer]:
    engine = create_engine(f"sqlite:///{tmp_path / 'business.db'}")
    yield Producer(group="g", check_listener=FenceCheckListener(engine))
    engine.dispose()


own = Producer(group="g", check_listener=OwnListener())
own_async = AsyncProducer(group="g", check_listener=OwnListener())


def test_callers_do_not_pass_the_session() -> None:
    register = transactional_message(own, topic="t", key="user_id", session=sessions)(with_session)
    assert str(inspect.signature(register)) == "(user_id: 'int', *, email: 'str' = 'e') -> 'int'"
    assert register.__name__ == "with_session"


def test_decoration_keeps_types() -> None:
    decorated = transactional_message(own, topic="t")(plain)
    assert inspect.signature(decorated) == inspect.signature(plain)
    method = transactional_message(own, topic="t", session=sessions)(Service.register)
    coroutine = transactional_message(own_async, topic="t", session=async_sessions)(with_async_session)
    assert inspect.iscoroutinefunction(coroutine)
    assert list(inspect.signature(method).parameters) == ["self", "user_id"]
    if TYPE_CHECKING:
        assert_type(decorated(1, email="x"), int)
        assert_type(method(Service(), user_id=1), str)
        _ = assert_type(coroutine(user_id=1), Coroutine[Any, Any, int])
        transactional_message(own, topic="t", session=sessions)(with_session)("one")  # type: ignore[arg-type]


class Service:
    def register(self, session: Session, user_id: int) -> str:
        return str(user_id)


def test_a_fence_without_a_session_is_refused(fenced: Producer) -> None:
    with pytest.raises(MisuseError, match="without session="):
        transactional_message(fenced, topic="t")(plain)


def test_a_producer_without_a_listener_is_refused() -> None:
    with pytest.raises(MisuseError, match="check_listener"):
        transactional_message(Producer(group="g"), topic="t")(plain)


def test_a_key_that_names_no_argument_is_refused() -> None:
    with pytest.raises(MisuseError, match="key='uid'"):
        transactional_message(own, topic="t", key="uid", session=sessions)(with_session)
    with pytest.raises(MisuseError, match="key='session'"):
        transactional_message(own, topic="t", key="session", session=sessions)(with_session)


def test_def_and_async_def_need_their_own_producer() -> None:
    with pytest.raises(MisuseError, match="AsyncProducer for async def"):
        transactional_message(own, topic="t")(plain_async)
    with pytest.raises(MisuseError, match="Producer for def"):
        transactional_message(own_async, topic="t")(plain)  # type: ignore[type-var]


def test_the_session_must_fit_the_function() -> None:
    with pytest.raises(MisuseError, match="must be an async_sessionmaker"):
        transactional_message(own_async, topic="t", session=sessions)(with_async_session)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="must be a sessionmaker"):
        transactional_message(own, topic="t", session=async_sessions)(with_session)  # type: ignore[arg-type]
    with Session() as one, pytest.raises(MisuseError, match="is one session"):
        transactional_message(own, topic="t", session=one)(with_session)  # type: ignore[call-overload]


def test_a_scoped_session_is_refused_for_coroutines() -> None:
    scoped: Any = scoped_session(sessions)
    with pytest.raises(MisuseError, match="must be an async_sessionmaker"):
        transactional_message(own_async, topic="t", session=scoped)(with_async_session)


def test_a_function_without_a_session_parameter_is_refused() -> None:
    def nothing() -> None: ...

    with pytest.raises(MisuseError, match="no first parameter for the session"):
        transactional_message(own, topic="t", session=sessions)(nothing)  # type: ignore[arg-type]


def test_generators_and_classes_are_refused() -> None:
    def generator(user_id: int) -> Iterator[int]:
        yield user_id

    with pytest.raises(MisuseError, match="is a generator"):
        transactional_message(own, topic="t")(generator)
    with pytest.raises(MisuseError, match="is not a function"):
        transactional_message(own, topic="t")(Service)
