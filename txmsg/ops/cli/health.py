"""`txmsg health`: asks a process of this machine whether it is ready. For the probes of containers and for scripts."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from contextlib import closing

import click

from txmsg.errors import BrokerUnavailable, printable
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import SECONDS, json_option
from txmsg.wire.address import check_reach, host_and_port
from txmsg.wire.listening import loopback

_TEXT_SIZE_MAX = 1000


@click.command(
    short_help="Ask whether a broker, a MetaQ server or a tailer of this machine is ready.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg health\n  txmsg health 127.0.0.1:9720 --alive",
)
@click.argument("address", metavar="[HOST:PORT]", default=f"{loopback()}:9700")
@click.option("--alive", is_flag=True, help="Check only whether the process works (/livez).")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    type=SECONDS,
    default="3s",
    show_default=True,
    help="Timeout for the answer.",
)
@json_option
def health(*, address: str, alive: bool, timeout_s: float, as_json: bool) -> None:
    """Request /readyz from the process with this --http-listen. Exit status 1, with the reason, if it is not ready.

    It asks over HTTP, or HTTPS if the process has --tls-cert: the same command serves before and after TLS is switched
    on. The process must be on this machine, so run a probe where the process runs: in its container.
    """
    check_reach(
        "HOST:PORT", address, "this asks processes of this machine", "run it where the process runs", is_guarded=False
    )
    try:
        status, text = _answer(*host_and_port(address), "/livez" if alive else "/readyz", max(timeout_s, 0.001))
    except (OSError, http.client.HTTPException) as exc:
        raise BrokerUnavailable(
            f"no answer at {address} ({exc}): does a process run there with --http-listen {address}?"
        ) from exc
    is_good = status == http.client.OK
    click.echo(json.dumps({"address": address, "ok": is_good, "answer": text}) if as_json else text)
    if not is_good:
        raise SystemExit(1)


def _answer(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
    """Return status and text. Raises OSError and HTTPException."""
    deadline = time.monotonic() + timeout_s
    try:
        # Plain HTTP first: a server with TLS answers it by bytes that are not HTTP, and is then asked again by TLS.
        return _asked(http.client.HTTPConnection(host, port, timeout=timeout_s), path)
    except http.client.BadStatusLine:  # what a process with TLS sends, which is none
        left_s = max(deadline - time.monotonic(), 0.001)
    # Not verified: the name of a certificate is that by which other machines know the process, and nothing is told it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _asked(http.client.HTTPSConnection(host, port, timeout=left_s, context=context), path)


def _asked(connection: http.client.HTTPConnection, path: str) -> tuple[int, str]:
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, printable(answer.read(_TEXT_SIZE_MAX).decode(errors="replace").strip())
