"""Run a command with a three-node Kafka whose nodes are killed and restarted in turn.

    python -m tests.kafka_cluster --kill-every 20 txmsg demo trades --log {kafka} --kill

`{kafka}` in the command becomes kafka://HOST:PORT,...; without a command it runs until Ctrl-C. The nodes end with it,
and the exit status is that of the command.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from tests.kafka_server import PrivateKafka

NODES: Final = 3


class NodeKiller:
    """Kills a node at regular intervals inside `with`, while the others answer, and restarts it."""

    def __init__(self, kafka: PrivateKafka, every_s: float, seed: int) -> None:
        self._kafka = kafka
        self._every_s = every_s
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-killer", daemon=True)
        self.kills = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            node = self._random.choice(self._kafka.nodes)
            node.kill()
            self.kills += 1
            self._ending.wait(self._every_s / 2)
            node.start()
            self._kafka.wait_until_ready()


def main() -> int:
    """Run the command line of the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_cluster", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kill-every", type=float, metavar="SECONDS", help="kill a node so often (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="which nodes are killed (default 0)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="{kafka} in it becomes the address of the cluster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txmsg-kafka-") as directory, ExitStack() as stack:
        kafka = stack.enter_context(PrivateKafka(Path(directory, "kafka"), NODES))
        print(f"Kafka is at {kafka.address}", file=sys.stderr, flush=True)
        killer = NodeKiller(kafka, options.kill_every, options.seed) if options.kill_every else None
        if killer is not None:
            stack.enter_context(killer)
        try:
            status = _run([word.replace("{kafka}", kafka.address) for word in options.command])
        finally:
            if killer is not None:
                print(f"nodes killed: {killer.kills}", file=sys.stderr)
    return status


def _run(command: list[str]) -> int:
    if command:
        return subprocess.run(command, check=False).returncode
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
