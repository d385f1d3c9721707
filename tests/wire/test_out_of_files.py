"""A server that cannot open more files logs it, and continues when it can."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from tests.waiting import until
from tests.wire.services import Echo, ask
from txmsg.errors import BrokerUnavailable
from txmsg.wire.blocking import BlockingChannel

WAIT_S = 60.0

PROGRAM = """
import asyncio, logging, os, resource, sys
from tests.wire.services import serving
from txmsg.runtime.loops import run

async def main():
    async with serving() as (address, _, _):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, int)  # which opens the files it needs
        assert 'uvloop' in type(loop).__module__
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        try:
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            print(address, flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        for file in files:
            os.close(file)
        await loop.run_in_executor(None, sys.stdin.readline)

logging.basicConfig(level=logging.ERROR, format="%(message)s")
run(main())
"""


def test_server_out_of_file_descriptors_logs_it_and_recovers() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            address = process.stdout.readline().strip()
            said = next(line for line in process.stderr if "no connection can be taken" in line)
            assert "cannot open another file (Too many open files)" in said
            with BlockingChannel(address) as channel:

                def is_answered() -> bool:
                    with suppress(BrokerUnavailable):
                        return channel.call(Echo.back, ask(), timeout_s=1).held == b"x"
                    return False

                assert not is_answered()
                print(file=process.stdin, flush=True)
                until(is_answered)
            print(file=process.stdin, flush=True)
            process.communicate(timeout=WAIT_S)
            assert process.returncode == 0
        finally:
            process.kill()
