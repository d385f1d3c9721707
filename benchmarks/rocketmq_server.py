"""A private Apache RocketMQ for benchmarks: a name server, and a proxy with the broker, each its own JVM.

The jars come by Maven, once, into the user's cache. The broker answers when a message is on disk (SYNC_FLUSH), as
txmsg's does; all else is as it comes, but for ports, paths and heaps.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tests.maven import jars
from tests.orphans import ENDING_WITH_PARENT
from tests.ports import own_port
from txmsg.runtime.child import Child, ChildFailed

VERSION: Final = "5.5.0"
_ARTIFACTS = [f"org.apache.rocketmq:rocketmq-{each}:{VERSION}" for each in ("namesrv", "proxy")]
_OPENED = ("java.lang", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.ref")
"""Modules that RocketMQ's own scripts open, and those that Netty and mapped files need from Java 17 on."""
_START_S_MAX = 900.0
_STOP_S_MAX = 60.0
_ATTEMPTS_MAX = 5
_CLUSTER = "DefaultCluster"


def java(heap_mib: int, main: str, *words: str, jars_in: Path, options: Sequence[str] = ()) -> list[str]:
    """Return a Java command."""
    return ["java", f"-Xmx{heap_mib}m", *options, "-cp", f"{jars_in}/*", main, *words]


@contextmanager
def rocketmq(directory: Path, topics: Mapping[str, str], groups: Sequence[str]) -> Iterator[str]:
    """Yield the endpoints of a RocketMQ in this empty directory, with these consumer groups.

    topics: the type of each, such as NORMAL or TRANSACTION.
    """
    names, grpc, remoting, replicas, _, _, broker = (own_port() for _ in range(7))  # it takes broker - 2, too
    name_server = f"127.0.0.1:{names}"
    settings = {
        "brokerClusterName": _CLUSTER,
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": name_server,
        "listenPort": broker,
        "haListenPort": replicas,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "flushDiskType": "SYNC_FLUSH",
    }
    proxy = {
        "rocketMQClusterName": _CLUSTER,
        "proxyMode": "LOCAL",
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": grpc,
        "remotingListenPort": remoting,
    }
    (directory / "names.conf").write_text(f"listenPort={names}\n")
    (directory / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (directory / "proxy.json").write_text(json.dumps(proxy))
    files = ("-bc", str(directory / "broker.conf"), "-pc", str(directory / "proxy.json"))
    of_proxy = ("-pm", "local", "-n", name_server, *files)
    of_names = ("-c", str(directory / "names.conf"))
    with (
        _running("namesrv.NamesrvStartup", *of_names, sign="boot success", heap_mib=256, home=directory),
        _running("proxy.ProxyStartup", *of_proxy, sign="startup successfully", heap_mib=1024, home=directory),
    ):
        _create(name_server, topics, groups, directory)
        yield f"127.0.0.1:{grpc}"


@contextmanager
def _running(main: str, *words: str, sign: str, heap_mib: int, home: Path) -> Iterator[None]:
    """Run a part of it, and wait until it prints this text."""
    is_there = threading.Event()

    def look(line: str) -> None:
        if sign in line:
            is_there.set()

    child = Child(
        f"RocketMQ's {main}",
        _command(main, *words, heap_mib=heap_mib, home=home),
        log=home / f"{main}.log",
        on_line=look,
        on_end=is_there.set,
        start=_spawn,
    )
    try:
        if not is_there.wait(_START_S_MAX):
            raise ChildFailed(f"{child.name} did not start; it said last: {child.last_line}")
        child.require_running()
        yield
    finally:
        child.stop(_STOP_S_MAX)


def _command(main: str, *words: str, heap_mib: int, home: Path) -> list[str]:
    return java(
        heap_mib,
        f"org.apache.rocketmq.{main}",
        *words,
        jars_in=jars(f"rocketmq-{VERSION}", *_ARTIFACTS),
        options=[
            *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED),
            f"-Drocketmq.home.dir={home}",
            f"-DRMQ_PROXY_HOME={home}",
            f"-Duser.home={home}",
        ],
    )


def _spawn(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ENDING_WITH_PARENT, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def _create(name_server: str, topics: Mapping[str, str], groups: Sequence[str], home: Path) -> None:
    """Create by RocketMQ's mqadmin, which waits for few seconds only: a freshly started broker may need longer."""
    of_topics = [("updateTopic", "-t", topic, "-a", f"+message.type={kind}") for topic, kind in topics.items()]
    for words in [*of_topics, *(("updateSubGroup", "-g", group) for group in groups)]:
        where = ("-n", name_server, "-c", _CLUSTER)
        command = _command("tools.command.MQAdminStartup", *words, *where, heap_mib=256, home=home)
        for _ in range(_ATTEMPTS_MAX):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S_MAX, check=False)
            if "success" in done.stdout:
                break
        else:
            raise ChildFailed(f"RocketMQ does not do what {' '.join(words)} says: {done.stdout}{done.stderr}")
