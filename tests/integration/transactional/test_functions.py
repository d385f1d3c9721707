"""@transactional_message on functions, with a real broker and a real business database."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import seen_from_outside
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, collecting, counts, nothing_comes
from tests.integration.transactional.users import Refused, User, users
from tests.waiting import until
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import fence_table
from txmsg.client import Producer, transactional_message
from txmsg.client.asker import Asker
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.message import ReceivedMessage, TransactionState


def test_a_committed_call_is_sent_with_its_arguments(
    broker: BrokerProcess, producer: Producer, sessions: sessionmaker[Session], engine: Engine
) -> None:
    @transactional_message(producer, topic="user", key="user_id", tag="signup", session=sessions)
    def register(session: Session, user_id: UUID, email: str) -> User:
        user = User(id=user_id, email=email)
        session.add(user)
        return user

    user_id = uuid4()
    with collecting(broker.address, "user") as got:
        user = register(user_id, email="e@example.org")
        assert user.email == "e@example.org"  # not expired, though the session is closed
        message = got.get(timeout=WAIT_S)
    assert json.loads(message.body) == {"user_id": str(user_id), "email": "e@example.org"}
    assert (message.key, message.tag) == (str(user_id), "signup")
    assert users(engine) == 1


def test_an_exception_rolls_back_transaction_and_message_and_is_raised_unchanged(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    error = Refused("no")

    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))
        session.flush()
        raise error

    with pytest.raises(Refused) as caught:
        register("e")
    assert caught.value is error
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


def test_a_violation_at_the_flush_rolls_back_transaction_and_message(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    register("e")
    with pytest.raises(IntegrityError):
        register("e")
    assert (users(engine), *counts(notify_url)) == (1, 0, 1)


def test_without_a_broker_the_function_does_not_run(engine: Engine, sessions: sessionmaker[Session]) -> None:
    ran = []
    listener = FenceCheckListener(engine)
    with Producer("127.0.0.1:1", group="g", check_listener=listener, timeout_s=0.5) as producer:

        @transactional_message(producer, topic="user", session=sessions)
        def register(session: Session) -> None:
            ran.append(1)

        with pytest.raises(BrokerUnavailable):
            register()
    assert ran == []


def test_after_the_death_of_a_broker_the_check_back_resolves_the_half(
    broker: BrokerProcess, sessions: sessionmaker[Session], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    listener = FenceCheckListener(engine)
    with Producer(broker.address, group="user-service", timeout_s=1.0, check_listener=listener) as producer:

        @transactional_message(producer, topic="user", session=sessions)
        def register(session: Session, email: str) -> str:
            session.add(User(id=uuid4(), email=email))
            broker.kill()
            return "done"

        assert register("e") == "done"
        assert users(engine) == 1
        until(lambda: "its check-back finishes it" in caplog.text)
        broker.start()
        with collecting(broker.address, "user") as got:
            assert json.loads(got.get(timeout=WAIT_S).body) == {"email": "e"}


def test_an_error_during_or_after_the_commit_is_resolved_by_the_check_back(
    broker: BrokerProcess, producer: Producer, engine: Engine, sessions: sessionmaker[Session]
) -> None:
    """The reply of COMMIT is lost: the client does not know the outcome, the fence does."""

    class LosesReply(Session):
        def commit(self) -> None:
            super().commit()
            raise ConnectionError("the reply was lost")

    @transactional_message(producer, topic="user", session=sessionmaker(engine, class_=LosesReply))
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    with collecting(broker.address, "user") as got:
        with pytest.raises(ConnectionError):
            register("e")
        assert json.loads(got.get(timeout=WAIT_S).body) == {"email": "e"}


def test_a_failed_commit_is_rolled_back_by_the_check_back(
    producer: Producer, engine: Engine, notify_url: str, broker: BrokerProcess
) -> None:
    class NeverCommits(Session):
        def commit(self) -> None:
            raise ConnectionError("cut before it was sent")

    @transactional_message(producer, topic="user", session=sessionmaker(engine, class_=NeverCommits))
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    with collecting(broker.address, "user") as got:
        with pytest.raises(ConnectionError):
            register("e")
        assert nothing_comes(got, within_s=1)
    assert users(engine) == 0


def test_committing_inside_is_refused_and_nothing_is_stored(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))
        session.commit()

    with pytest.raises(MisuseError, match="commit inside"):
        register("e")
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


def test_swallowing_a_rollback_is_refused(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))
        session.flush()
        session.rollback()

    with pytest.raises(MisuseError, match="returned normally"):
        register("e")
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


def test_a_savepoint_may_fail_and_the_rest_commits(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))
        for _ in range(2):
            try:
                with session.begin_nested():
                    session.add(User(id=uuid4(), email="friend"))
            except IntegrityError:
                continue

    register("e")
    assert (users(engine), *counts(notify_url)) == (2, 0, 1)


def test_a_savepoint_left_open_rolls_back_transaction_and_message(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session) -> None:
        session.begin_nested()
        session.add(User(id=uuid4(), email="e"))

    with pytest.raises(
        MisuseError, match=r"a savepoint is still open at the end of .*register\(\): end it inside"
    ) as caught:
        register()
    assert is_documented(caught.value)
    assert (users(engine), *counts(notify_url)) == (0, 0, 0)


def test_a_check_during_the_call_does_not_decide_the_transaction(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    seen = []
    listener = FenceCheckListener(seen_from_outside(engine))

    @transactional_message(producer, topic="user", session=sessions)
    def register(session: Session, email: str) -> None:
        transaction_id = session.execute(select(fence_table.c.transaction_id)).scalar_one()
        seen.append(listener.fence.check(transaction_id))

    register("e")
    assert seen == [TransactionState.UNKNOWN]
    assert counts(notify_url) == (0, 1)


def test_methods_can_be_decorated_like_functions(
    producer: Producer, sessions: sessionmaker[Session], engine: Engine, broker: BrokerProcess
) -> None:
    class Service:
        @transactional_message(producer, topic="user", key="email", session=sessions)
        def register(self, session: Session, email: str) -> str:
            session.add(User(id=uuid4(), email=email))
            return email

    with collecting(broker.address, "user") as got:
        assert Service().register("e") == "e"
        assert json.loads(got.get(timeout=WAIT_S).body) == {"email": "e"}


def test_without_a_session_the_check_listener_decides_after_an_exception(broker: BrokerProcess) -> None:
    answers: queue.Queue[ReceivedMessage] = queue.Queue()

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            answers.put(message)
            return TransactionState.COMMIT

    with (
        Producer(broker.address, group="own", timeout_s=WAIT_S, check_listener=Listener()) as producer,
        collecting(broker.address, "user") as got,
    ):

        @transactional_message(producer, topic="user")
        def register(email: str) -> str:
            if email == "bad":
                raise Refused
            return email

        assert register("good") == "good"
        assert json.loads(got.get(timeout=WAIT_S).body) == {"email": "good"}
        with pytest.raises(Refused):
            register("bad")
        asked = answers.get(timeout=WAIT_S)
        assert (asked.topic, json.loads(asked.body), asked.queue, asked.offset) == (
            "user",
            {"email": "bad"},
            None,
            None,
        )
        assert json.loads(got.get(timeout=WAIT_S).body) == {"email": "bad"}


def test_a_commit_that_bypasses_sqlalchemy_before_an_exception_counts_as_a_commit(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    """No event of SQLAlchemy sees such a commit; the fence does."""
    with Producer(
        broker.address, group="shop", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:

        @transactional_message(producer, topic="user", session=sessionmaker(engine))
        def register(session: Session) -> None:
            session.add(User(id=uuid4(), email="e"))
            session.flush()
            session.connection().connection.commit()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            register()
    assert (users(engine), *counts(notify_url)) == (1, 0, 1)


def test_a_custom_listener_is_checked_after_an_exception_even_with_a_session(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    """Only the listener can know of a commit that bypassed SQLAlchemy."""

    class UsersListener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT if users(engine) else TransactionState.ROLLBACK

    with Producer(broker.address, group="own", timeout_s=WAIT_S, check_listener=UsersListener()) as producer:

        @transactional_message(producer, topic="user", session=sessionmaker(engine))
        def register(session: Session) -> None:
            session.add(User(id=uuid4(), email="e"))
            session.flush()
            session.connection().connection.commit()
            raise ZeroDivisionError

        with collecting(broker.address, "user") as got:
            with pytest.raises(ZeroDivisionError):
                register()
            got.get(timeout=WAIT_S)
    assert (users(engine), *counts(notify_url)) == (1, 0, 1)


async def save_later(session: Session, email: str) -> None:
    raise AssertionError("nobody awaits this")


@pytest.mark.parametrize(
    "work",
    [
        lambda session, email: save_later(session, email.lower()),
        lambda session, email: (session.add(User(id=uuid4(), email=each)) for each in [email]),
        lambda session, email: map(session.add, [User(id=uuid4(), email=email)]),
        lambda session, email: filter(session.add, [User(id=uuid4(), email=email)]),
    ],
    ids=["coroutine", "generator", "map", "filter"],
)
def test_work_that_would_run_after_the_return_is_refused(
    work: Callable[[Session, str], Any], producer: Producer, sessions: sessionmaker[Session], notify_url: str
) -> None:
    register = transactional_message(producer, topic="user", session=sessions)(work)
    with pytest.raises(MisuseError, match="not run"):
        register("e")
    assert counts(notify_url) == (0, 0)


def test_a_check_while_a_call_waits_for_its_connection_is_answered_unknown(
    broker: BrokerProcess, producer: Producer, sessions: sessionmaker[Session], engine: Engine, notify_url: str
) -> None:
    """The fence has no row yet; only this process knows that the call is in progress."""
    halves: list[bytes] = []
    answers: list[TransactionState] = []
    producer.hooks.after_half = lambda half: halves.append(half.id_bytes)

    def ask() -> None:
        asker = Asker(FenceCheckListener(engine), threads=1)
        answers.append(asyncio.run(asker.ask_listener(ReceivedMessage("user", b"", id_bytes=halves[-1]))))
        asker.close()

    def slowly() -> Session:
        ask()
        return sessions()

    @transactional_message(producer, topic="user", session=slowly)
    def register(session: Session, email: str) -> None:
        session.add(User(id=uuid4(), email=email))

    register("e")
    ask()
    assert answers == [TransactionState.UNKNOWN, TransactionState.COMMIT]
    assert (users(engine), *counts(notify_url)) == (1, 0, 1)
