"""RocketMQ's own tests against a gateway: `python -m tests.rocketmq.upstream java|go|node --source DIR`.

DIR is a clone of apache/rocketmq-e2e (java, go) or of apache/rocketmq-clients (node), which is not changed. A broker
and a gateway are started. The tests' output is printed; docs/how-to/rocketmq.md says why some of them fail.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.broker_process import BrokerProcess
from tests.maven import jars
from tests.rocketmq.gateway import running_gateway
from tests.rocketmq.programs import node_packages
from tests.wire.certificates import Authority

_ADMIN: Final = Path(__file__).parent / "upstream_admin"
"""Creates topics and groups for the tests, in place of RocketMQ's mqadmin."""
_JAVA: Final = (
    "org.apache.rocketmq:rocketmq-client-java:5.2.0",
    "org.apache.rocketmq:rocketmq-tools:5.0.0",
    "org.awaitility:awaitility:4.0.3",
    "ch.qos.logback:logback-classic:1.3.0-beta0",
    "org.projectlombok:lombok:1.18.38",
    "org.junit.platform:junit-platform-console-standalone:1.7.2",
)
_GO: Final = "github.com/apache/rocketmq-clients/golang/v5@v5.1.4"
_RENAMED: Final = {
    "rocketmq-clients/golang": "rocketmq-clients/golang/v5",
    "rmq_client.WithAwaitDuration": "rmq_client.WithSimpleAwaitDuration",
    "rmq_client.WithSubscriptionExpressions": "rmq_client.WithSimpleSubscriptionExpressions",
}
"""Renamed in the Go client since those tests were written."""
_NO_GATEWAY: Final = {"https://www.aliyun.com": "https://127.0.0.1:1"}
"""Called by the Java tests to see that it is refused; here without leaving this machine."""
_TXMSG: Final = str(Path(sys.executable).with_name("txmsg"))


class Site(NamedTuple):
    """The gateway of the tests, and an empty directory."""

    endpoints: str
    broker: str
    home: Path

    def run(self, *command: str, where: Path, **environment: str) -> int:
        """Run tests, which may call `txmsg` for this broker; return the exit status. Their clients log below `home`."""
        ours = {"TXMSG": _TXMSG, "TXMSG_BROKERS": self.broker, "HOME": str(self.home)}
        return subprocess.run(command, cwd=where, env={**os.environ, **ours, **environment}, check=False).returncode


@contextmanager
def _site(*, with_tls: bool) -> Iterator[Site]:
    """Run a broker with embedded PostgreSQL and a gateway. with_tls: as the Java and Go clients want it by default."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        options: list[str] = []
        if with_tls:
            certificate, key = Authority(home / "authority").issue("127.0.0.1")
            options = ["--tls-cert", str(certificate), "--tls-key", str(key)]
        with (
            BrokerProcess(None, "--data-dir", str(home / "data"), log=home / "broker.log") as broker,
            running_gateway(broker.address, *options, log=home / "gateway.log") as gateway,
        ):
            yield Site(gateway.address, broker.address, home)


def _replace(tests: Path, pattern: str, changes: Mapping[str, str]) -> None:
    for file in tests.rglob(pattern):
        text = file.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)


def _java(site: Site, source: Path, only: str) -> int:
    """Run one test at a time: on few cores, a hundred clients that start at once miss their own deadlines."""
    tests, classes = site.home / "e2e", site.home / "classes"
    shutil.copytree(source / "java" / "e2e", tests)
    _replace(tests, "*.java", _NO_GATEWAY)
    shutil.copy(_ADMIN / "MQAdmin.java", tests / "src/main/java/org/apache/rocketmq/util")
    brought = jars("rocketmq-e2e-java", *_JAVA)
    path = ":".join(
        str(jar) for jar in brought.glob("*.jar") if "rocketmq-proto" not in jar.name
    )  # it is in the client
    sources = map(str, tests.rglob("*.java"))
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", path, *sources], check=True)
    return site.run(
        "java",
        f"-Duser.home={site.home}",
        f"-DendPoint={site.endpoints}",
        f"-DnamesrvAddr={site.endpoints}",  # used only for a check that it listens
        "-cp",
        f"{classes}:{tests / 'src/test/resources'}:{path}",
        "org.junit.platform.console.ConsoleLauncher",
        f"--scan-class-path={classes}",
        f"--include-classname=.*({only})",
        "--config=junit.jupiter.execution.parallel.enabled=false",
        "--details=tree",
        where=tests,
    )


def _go(site: Site, source: Path, only: str) -> int:
    tests, bin_ = site.home / "golang", site.home / "rocketmq-admintools" / "bin"
    shutil.copytree(source / "golang", tests)
    for name in ("go.mod", "go.sum"):
        (tests / name).unlink()
    _replace(tests, "*.go", _RENAMED)
    bin_.mkdir(parents=True)
    shutil.copy(_ADMIN / "mqadmin", bin_)
    for words in (("mod", "init", "rocketmq-go-e2e"), ("get", _GO), ("mod", "tidy")):
        subprocess.run(["go", *words], cwd=tests, check=True)
    asked = subprocess.run(["go", "env", "-json", "GOPATH", "GOCACHE"], check=True, capture_output=True, text=True)
    command = ("go", "test", "-p=1", "-count=1", "-v", f"-run={only}", "./mqgotest/...")
    return site.run(*command, where=tests, GRPC_ENDPOINT=site.endpoints, **json.loads(asked.stdout))


def _node(site: Site, source: Path, only: str) -> int:
    """Run the Node tests with the protocol modules of the package, which the build would generate."""
    tests = site.home / "nodejs"
    shutil.copytree(source / "nodejs", tests)
    package = node_packages() / "node_modules" / "rocketmq-client-nodejs"
    shutil.copytree(package / "proto", tests / "proto", dirs_exist_ok=True)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=tests, check=True)
    for kind in ("Normal", "Fifo", "Delay", "Transaction"):
        create = (_TXMSG, "topic", "create", f"TopicTestFor{kind}", "--type", kind.lower(), "--broker", site.broker)
        subprocess.run(create, check=True)
    files = ("test/producer/Producer.test.ts", "test/consumer/SimpleConsumer.test.ts", "test/ProducerRecall.test.ts")
    command = ("mocha", "--exit", "--timeout=60000", "--require=ts-node/register/transpile-only", f"--grep={only}")
    mocha = ("node_modules/.bin/" + command[0], *command[1:], *files)
    return site.run(*mocha, where=tests, ROCKETMQ_NODEJS_CLIENT_ENDPOINTS=site.endpoints)


def main() -> int:
    """Run one suite; return the exit status of its runner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    suites = {"java": _java, "go": _go, "node": _node}
    parser.add_argument("suite", choices=list(suites))
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="the clone with the tests")
    parser.add_argument(
        "--only", default=".*", metavar="REGEX", help="tests (Java: classes) with such a name; default: all"
    )
    options = parser.parse_args()
    with _site(with_tls=options.suite != "node") as site:
        return suites[options.suite](site, options.source, options.only)


if __name__ == "__main__":
    sys.exit(main())
