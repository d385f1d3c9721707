"""A forked child and a log, a MetaQ server and an embedded database opened by its parent."""

from __future__ import annotations

from pathlib import Path

from tests.forks.programs import run
from tests.metaq.servers import MetaQProcess

_HEAD = """
from txmsg.metaq import LogProducer, open_log
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.store.topics import TopicSettings

A = LogQueue("t", 0)

def refused(*calls):
    for call in calls:
        try:
            call()
        except MisuseError as exc:
            print(exc)
"""


def test_child_of_the_writer_of_a_log_can_read_but_not_write(tmp_path: Path) -> None:
    """Even if other threads of the parent held the log's locks at the fork."""
    program = """
        log = open_log(sys.argv[1], append=True)
        producer = LogProducer(log, queues=1)
        ended = threading.Event()
        appended = []

        def work():
            while not ended.is_set():
                appended.append(producer.send(Message("t", b"x")).offset)
                log.fetch({A: 0})

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()

        def child():
            assert log.ranges([A])[A].end >= count
            refused(
                lambda: producer.send(Message("t", b"x")),
                lambda: log.set_topic("t", TopicSettings()),
                log.flush,
            )
            log.close()

        for _ in range(5):
            count = len(appended)
            until(lambda: len(appended) >= count + 10)
            count = len(appended)
            wait(in_child(child))
        ended.set()
        for thread in threads:
            thread.join()
        assert sorted(appended) == list(range(len(appended)))
        assert log.ranges([A])[A].end == len(appended)
        log.close()
    """
    said = run(program, str(tmp_path), before=_HEAD)
    assert len(said) == 15
    assert all("was forked from the one that writes the log" in each for each in said)


def test_child_uses_a_remote_log_as_another_producer_and_is_not_a_member(tmp_path: Path) -> None:
    program = """
        log = RemoteLog(sys.argv[1], session_s=120)
        producer = LogProducer(log, queues=1)
        member = log.join("g", ["t"])
        offsets = [producer.send(Message("t", b"x")).offset]
        assert member.take_queues([A]) == {A: 0}

        def child():
            print(producer.send(Message("t", b"x")).offset)
            refused(lambda: member.store({A: 1}))
            log.close()

        for _ in range(2):
            wait(in_child(child))
            offsets.append(producer.send(Message("t", b"x")).offset)
        member.store({A: 3})
        assert offsets == [0, 2, 4]
        log.close()
    """
    server = MetaQProcess(tmp_path / "log", log=tmp_path / "server.log")
    server.start()
    try:
        said = run(program, server.address, before=_HEAD)
    finally:
        server.kill()
    assert said[::2] == ["1", "3"]
    assert all("and is not a member itself: join again" in each for each in said[1::2])


def test_exit_of_a_child_does_not_stop_the_embedded_database(tmp_path: Path) -> None:
    program = """
        from pathlib import Path
        from txmsg.broker.embedded import EmbeddedPostgres
        import psycopg

        def answer():
            with psycopg.connect(database.url("postgres")) as connection:
                return connection.execute("select pg_postmaster_start_time()").fetchone()

        with EmbeddedPostgres(Path(sys.argv[1])) as database:
            before = answer()

            def child():
                assert answer() == before
                database.stop()

            for leave in (sys.exit, os._exit):
                wait(in_child(child, leave))
                assert answer() == before
        assert not database.running
    """
    assert run(program, str(tmp_path / "pg")) == []
