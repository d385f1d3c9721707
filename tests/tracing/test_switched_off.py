"""OpenTelemetry is imported only with tracing; if it is missing, the error names its package."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT = "import sys; sys.modules['opentelemetry'] = None\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_opentelemetry_is_imported_only_on_request() -> None:
    done = run(f"{_WITHOUT}import txmsg.broker.server, txmsg.ops.cli.tailer, txmsg.client\nprint('imported')")

    assert done.stdout == "imported\n", done.stderr


def test_missing_opentelemetry_is_reported_with_its_install_command() -> None:
    done = run(f"{_WITHOUT}import txmsg.tracing")

    assert "pip install 'txmsg[otel]'" in done.stderr.splitlines()[-1]


def test_a_server_without_opentelemetry_refuses_the_option() -> None:
    done = run(
        f"{_WITHOUT}from txmsg.ops.cli.main import main\nsys.argv = ['txmsg', 'tailer', 'run', '--tracing', "
        "'--storage', 'postgresql://localhost/x', '--metaq', '/nowhere']\nmain()"
    )

    assert done.returncode != 0
    assert "--tracing cannot be used: txmsg.tracing needs OpenTelemetry's API: pip install 'txmsg[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_an_sdk_warns_that_there_are_no_spans() -> None:
    done = run("from txmsg.settings.tracing import tracing_of_process\nprint(tracing_of_process())")

    assert "opentelemetry-instrument" in done.stderr
    assert "Tracing" in done.stdout
