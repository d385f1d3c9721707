"""A forked child uses objects created before the fork over its own connections, and the parent continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.forks.programs import WITHOUT_UVLOOP, run
from tests.integration.client_harness import half_count, message_count

LOOPS = pytest.mark.parametrize(
    "before", [pytest.param("", id="uvloop"), pytest.param(WITHOUT_UVLOOP, id="asyncio", marks=pytest.mark.long)]
)


@LOOPS
@pytest.mark.parametrize("leave", ["sys.exit", "os._exit"])
def test_child_and_parent_send_over_their_own_connections(
    broker: BrokerProcess, notify_url: str, before: str, leave: str
) -> None:
    program = f"""
        producer = Producer(sys.argv[1], group="g", timeout_s=60)
        print(producer.send(Message("t", b"x")))
        before = connections()

        def child():
            print(producer.send(Message("t", b"x")))
            assert connections() and not connections() & before

        for _ in range(2):
            wait(in_child(child, {leave}))
            print(producer.send(Message("t", b"x")))
        assert connections() >= before
        producer.close()
    """
    ids = run(program, broker.address, before=before)
    assert len(set(ids)) == len(ids) == message_count(notify_url) == 5


@LOOPS
def test_fork_during_transactions_of_other_threads_loses_none(
    broker: BrokerProcess, notify_url: str, before: str
) -> None:
    """Each child starts while locks are held, requests are pending and replies arrive."""
    program = """
        producer = Producer(sys.argv[1], group="g", timeout_s=60)
        ended = threading.Event()
        done = []

        def transactions():
            while not ended.is_set():
                half = producer.half([Message("t", b"x")])
                producer.end(half, TransactionState.COMMIT)
                done.append(half)

        def child():
            for _ in range(3):
                producer.end(producer.half([Message("t", b"x")]), TransactionState.COMMIT)

        producer.start()
        threads = [threading.Thread(target=transactions) for _ in range(4)]
        for thread in threads:
            thread.start()
        children = []
        for number in range(8):
            count = len(done)
            until(lambda: len(done) >= count + 20)
            children.append(in_child(child, [sys.exit, os._exit][number % 2]))
        for pid in children:
            wait(pid)
        ended.set()
        for thread in threads:
            thread.join()
        producer.close()
        print(len(done))
    """
    [done] = run(program, broker.address, before=before)
    assert message_count(notify_url) == int(done) + 8 * 3
    assert half_count(notify_url) == 0


def test_child_counts_only_the_messages_it_receives(broker: BrokerProcess) -> None:
    program = """
        received = threading.Event()
        consumer = Consumer(sys.argv[1], group="g")
        consumer.subscribe("t")(lambda message: received.set())

        def print_count():
            print(consumer._core._counts.received, len(consumer._core._shards))

        with Producer(sys.argv[1], group="g", timeout_s=60) as producer, consumer:
            producer.send(Message("t", b"x"))
            assert received.wait(60)
            print_count()
            wait(in_child(print_count))
    """
    assert run(program, broker.address) == ["1 1", "0 0"]


def test_transaction_open_at_the_fork_is_committed_by_the_parent(broker: BrokerProcess, notify_url: str) -> None:
    program = """
        from multiprocessing import get_context
        producer = Producer(sys.argv[1], group="g", timeout_s=60)

        def send(_):
            return producer.send(Message("t", b"x"))

        half = producer.half([Message("t", b"x")])
        with get_context("fork").Pool(2) as pool:
            print(*pool.map(send, range(10)), sep="\\n")
        producer.end(half, TransactionState.COMMIT)
        producer.close()
    """
    assert len(set(run(program, broker.address))) == 10
    assert (message_count(notify_url), half_count(notify_url)) == (11, 0)


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param("None", id="asyncio"),
        pytest.param("__import__('uvloop').new_event_loop", id="uvloop", marks=pytest.mark.long),
    ],
)
def test_async_producer_uses_the_event_loop_of_the_child(broker: BrokerProcess, notify_url: str, factory: str) -> None:
    program = f"""
        import asyncio
        producer = AsyncProducer(sys.argv[1], group="g", timeout_s=60)

        async def sends():
            async with producer:
                print(await producer.send(Message("t", b"x")))

        async def forks():
            print(await producer.send(Message("t", b"x")))
            before = connections()
            wait(in_child(lambda: asyncio.run(sends()), os._exit))
            print(await producer.send(Message("t", b"x")))
            assert connections() == before
            await producer.close()

        with asyncio.Runner(loop_factory={factory}) as runner:
            runner.run(forks())
    """
    assert len(set(run(program, broker.address))) == 3 == message_count(notify_url)


def test_event_loop_dropped_by_a_child_is_not_finalized(broker: BrokerProcess) -> None:
    """Else it would remove its own pipe from the epoll instance that it shares with the parent's loop."""
    program = """
        import asyncio, gc

        async def go_on():
            print(await producer.send(Message("t", b"x")))
            await asyncio.to_thread(int)

        loop = asyncio.new_event_loop()
        producer = AsyncProducer(sys.argv[1], group="g", timeout_s=60)
        loop.run_until_complete(go_on())

        def child():
            global loop
            loop = None
            gc.collect()

        wait(in_child(child))
        loop.run_until_complete(go_on())
        loop.run_until_complete(producer.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """
    assert len(set(run(program, broker.address))) == 2


def test_fence_connections_dropped_by_a_child_are_not_finalized(broker: BrokerProcess, database_url: str) -> None:
    program = """
        import asyncio, gc
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine

        async def main():
            engine = create_async_engine(sys.argv[2].replace("postgresql:", "postgresql+asyncpg:"))
            async with engine.begin() as connection:
                await connection.run_sync(create_tables)
            async with AsyncProducer(
                sys.argv[1], group="g", check_listener=FenceCheckListener(engine), timeout_s=60
            ) as producer:
                wait(in_child(gc.collect, os._exit))
                async with engine.begin() as connection:
                    print(await connection.scalar(text("select 1")))
            await engine.dispose()

        asyncio.run(main())
    """
    assert run(program, broker.address, database_url) == ["1"]


def test_locks_held_by_threads_of_the_parent_do_not_block_a_child(tmp_path: Path, broker: BrokerProcess) -> None:
    """That thread starts the producer, and waits for the business database in the middle of it."""
    program = """
        import sqlite3
        from sqlalchemy import create_engine
        parent, begun, goes_on = os.getpid(), threading.Event(), threading.Event()

        def connect():
            if os.getpid() == parent and created.is_set():
                begun.set()
                goes_on.wait()
            return sqlite3.connect(sys.argv[2], check_same_thread=False)

        created = threading.Event()
        engine = create_engine("sqlite:///" + sys.argv[2], creator=connect)
        create_tables(engine)
        engine.dispose()
        created.set()
        producer = Producer(sys.argv[1], group="g", check_listener=FenceCheckListener(engine), timeout_s=60)
        starts = threading.Thread(target=producer.start)
        starts.start()
        begun.wait()
        wait(in_child(lambda: print(producer.send(Message("t", b"x")))))
        goes_on.set()
        starts.join()
        print(producer.send(Message("t", b"x")))
        producer.close()
        engine.dispose()
    """
    assert len(set(run(program, broker.address, str(tmp_path / "business.db")))) == 2


def test_the_fence_of_a_child_does_not_use_database_connections_of_the_parent(
    broker: BrokerProcess, database_url: str
) -> None:
    program = """
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import sessionmaker
        engine = create_engine(sys.argv[2].replace("postgresql:", "postgresql+psycopg:"), pool_size=1, max_overflow=0)
        create_tables(engine)
        sessions = sessionmaker(engine)
        producer = Producer(sys.argv[1], group="g", check_listener=FenceCheckListener(engine), timeout_s=60)

        @transactional_message(producer, topic="t", session=sessions)
        def register(session):
            return session.execute(text("select pg_backend_pid()")).scalar_one()

        parent = register()

        def child():
            assert register() != parent

        wait(in_child(child))
        assert register() == parent
        producer.close()
        engine.dispose()
    """
    assert run(program, broker.address, database_url) == []


def test_children_of_one_parent_generate_different_ids() -> None:
    """They have copies of one random generator's state, and may generate ids in the same millisecond."""
    program = """
        from txmsg.message import new_transaction_id
        new_transaction_id()
        for _ in range(3):
            wait(in_child(lambda: print(new_transaction_id().hex[-8:])))
    """
    assert len(set(run(program))) == 3


def test_connections_of_a_dead_parent_close_while_its_child_lives(broker: BrokerProcess) -> None:
    """Its sockets close with it, since the child does not keep copies of them."""
    program = """
        producer = Producer(sys.argv[1], group="g", timeout_s=60)
        producer.send(Message("t", b"x"))
        server = psutil.Process(int(sys.argv[2]))
        mine = connections()

        def not_ended():
            return mine & {each.raddr for each in server.net_connections("tcp") if each.status == "ESTABLISHED"}

        server.suspend()  # so that it does not end them itself
        assert not_ended() == mine
        lives, ends = os.pipe()

        def child():
            os.close(ends)
            os.read(lives, 1)

        pid = in_child(child, os._exit)
        producer.close()
        until(lambda: not not_ended(), within_s=60)
        os.close(ends)
        wait(pid)
    """
    try:
        assert run(program, broker.address, str(broker.pid)) == []
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_consumer_of_the_parent_continues_and_a_child_can_start_its_own(broker: BrokerProcess) -> None:
    program = """
        consumer = Consumer(sys.argv[1], group="receivers")
        came = threading.Event()

        @consumer.subscribe("t")
        def receive(message):
            print(os.getpid() == parent, message.body.decode())
            sys.stdout.flush()
            came.set()

        parent = os.getpid()
        consumer.start()
        producer = Producer(sys.argv[1], group="g", timeout_s=60)
        wait(in_child(consumer.close))  # which the parent does not see
        producer.send(Message("t", b"1"))
        came.wait()
        started, starts = os.pipe()

        def child():
            came.clear()
            with consumer:
                os.write(starts, b".")
                came.wait()

        pid = in_child(child)
        os.read(started, 1)
        consumer.close()
        producer.send(Message("t", b"2"))
        wait(pid)
        producer.close()
    """
    assert run(program, broker.address) == ["True 1", "False 2"]


def test_broadcasting_consumer_created_before_a_fork_is_refused_in_the_child() -> None:
    program = """
        consumer = Consumer("127.0.0.1:1", group="all", broadcast=True)
        consumer.subscribe("t")(print)

        def child():
            try:
                consumer.start()
            except MisuseError as exc:
                print(exc)

        wait(in_child(child))
    """
    [said] = run(program)
    assert "was made with broadcast=True before this process was forked" in said


def test_child_forked_by_a_c_library_is_refused_with_the_fix() -> None:
    """A library in C forks by itself, as uWSGI does by default."""
    program = """
        producer = Producer("127.0.0.1:1", group="g").start()
        libc = ctypes.PyDLL(None)
        pid = libc.fork()
        if pid == 0:
            for use in (lambda: producer.send(Message("t", b"x")), Producer("127.0.0.1:1", group="h").start):
                try:
                    use()
                except MisuseError as exc:
                    print(exc, flush=True)
            libc._exit(0)
        wait(pid)
        producer.close()
    """
    said = run(program)
    assert len(said) == 2
    assert all("without Python's being told" in each and "py-call-osafterfork" in each for each in said)


def test_closed_producer_can_be_used_by_a_child(broker: BrokerProcess) -> None:
    program = """
        with Producer(sys.argv[1], group="g", timeout_s=60) as producer:
            producer.send(Message("t", b"x"))
        wait(in_child(lambda: print(producer.send(Message("t", b"x")))))
    """
    assert len(run(program, broker.address)) == 1
