"""Children of forked children: objects renewed in one process are not its parent's again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forks.programs import run

FACTORIES = pytest.mark.parametrize(
    "factory", ["None", "__import__('uvloop').new_event_loop"], ids=["asyncio", "uvloop"]
)
_HEAD = """
def open_files():
    return [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]

def count_open(files):
    print(sum(os.path.exists(f"/proc/self/fd/{file}") for file in files), "of", len(files))
"""


@FACTORIES
def test_grandchild_keeps_files_with_reused_descriptors_of_connections(factory: str) -> None:
    program = f"""
        import asyncio
        from txmsg.wire.channel import Channel
        from txmsg.wire.handlers import Handlers
        from txmsg.wire.server import WireServer
        from txmsg.wire.shared import Shared

        async def main():
            server = WireServer(Handlers({{}}), Shared(connections_max=10))
            channel = Channel(await server.bind("127.0.0.1:0"))
            await server.start()
            connection = await channel._connected(asyncio.get_running_loop().time() + 60)
            number = connection._transport.get_extra_info("socket").fileno()

            def child():
                files = open_files()
                assert number in files
                wait(in_child(lambda: count_open(files), os._exit))

            wait(in_child(child, os._exit))
            connection.require_open()
            await channel.close()
            await server.stop(0)

        with asyncio.Runner(loop_factory={factory}) as runner:
            runner.run(main())
    """
    assert run(program, before=_HEAD) == ["64 of 64"]


def test_grandchild_keeps_files_with_reused_descriptors_of_a_member(tmp_path: Path) -> None:
    program = """
        from txmsg.metaq import LogProducer, open_log
        from txmsg.metaq.interface import LogQueue

        log = open_log(sys.argv[1], append=True)
        LogProducer(log, queues=1).send(Message("t", b"x"))
        member = log.join("g", ["t"])
        assert member.take_queues([LogQueue("t", 0)])
        numbers = {file._fd for file in member._files()}

        def child():
            files = open_files()
            assert numbers <= set(files)
            wait(in_child(lambda: count_open(files)))

        wait(in_child(child))
        member.leave({})
        log.close()
    """
    assert run(program, str(tmp_path), before=_HEAD) == ["64 of 64"]


def test_failed_renewal_in_a_child_is_logged_and_the_others_are_renewed() -> None:
    program = """
        import logging
        from txmsg.runtime.forks import renew_in_children
        logging.basicConfig(stream=sys.stdout, format="%(message)s")

        class Renewable:
            is_renewed = False

            def _renew(self):
                self.is_renewed = True

        class Unrenewable:
            def _renew(self):
                raise OSError("as a file that is closed")

        renewable = [Renewable() for _ in range(20)]
        all_of_them = [*renewable, *(Unrenewable() for _ in range(5))]
        for each in all_of_them:
            renew_in_children(each)
        wait(in_child(lambda: print(sum(each.is_renewed for each in renewable), "renewed")))
        assert not any(each.is_renewed for each in renewable)
    """
    said = run(program)
    assert said[-1] == "20 renewed"
    assert sum("OSError: as a file that is closed" in line for line in said) == 5
    assert sum("Unrenewable" in line and "forked" in line for line in said) == 5


def test_consumer_metrics_of_a_child_exclude_those_of_the_parent(tmp_path: Path) -> None:
    program = """
        from txmsg.client.consumer import Consumer
        from txmsg.consumer.lifecycle import Lifecycle
        from txmsg.metaq import LogProducer, open_log
        from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
        from txmsg.metrics.catalogue import ExportingProcess
        from txmsg.metrics.figures import Figures

        def figures_of(consumer):
            figures = Figures(ExportingProcess.APPLICATION)
            consumer._core._put_figures(figures)
            values = {metric.name: list(each.values()) for metric, each in figures.series()}
            [seconds] = values["txmsg_handler_seconds"]
            return (
                values["txmsg_client_received_messages_total"], sum(seconds.counts), values["txmsg_handlers_running"],
                values["txmsg_client_held_messages"], values.get("txmsg_handler_failures_total", []),
            )

        with open_log(sys.argv[1], append=True) as log:
            LogProducer(log, queues=1).send_many([Message("t", b"x")] * 3)
        of_log, of_brokers = Lifecycle(AsyncPushConsumer(sys.argv[1], "g")), Consumer("127.0.0.1:1", group="g")
        leave, begun = threading.Event(), []

        @of_log._core.subscribe("t")
        def handle(message):
            begun.append(message)
            if len(begun) == 2:
                leave.wait()

        of_brokers.subscribe("t")(print)
        of_brokers._core._subscriptions.handlers["t"].counts.called(0.1)
        for consumer in (of_log, of_brokers):
            consumer._core._subscriptions.handlers["t"].counts.raised(ValueError())
        nothing = ([0], 0, [0], [0], [])
        with of_log:
            until(lambda: len(begun) == 2)
            assert figures_of(of_log) == ([0], 1, [1], [2], [1]), figures_of(of_log)
            assert figures_of(of_brokers) == ([0], 1, [0], [0], [1]), figures_of(of_brokers)
            wait(in_child(lambda: print(figures_of(of_log) == nothing, figures_of(of_brokers) == nothing)))
            leave.set()
    """
    assert run(program, str(tmp_path)) == ["True True"]
