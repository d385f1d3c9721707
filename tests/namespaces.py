"""Run programs in their own namespaces with `unshare`, with another network or /tmp. Needs root."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

_SIOCSIFADDR, _SIOCSIFFLAGS = 0x8916, 0x8914
_IFF_UP = 1
_UNSHARE = ("unshare", "--net", "--mount")


@cache
def why_not() -> str:
    """Return the reason why no program can run in a namespace here; "" if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (Debian: util-linux)"
    for command in (only_ipv6("true"), with_read_only_tmp("true")):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            return f"namespaces need root: {done.stderr.strip()[-200:]}"
    return ""


def only_ipv6(*command: str) -> Sequence[str]:
    """Return the command with a network whose only address is ::1."""
    return [*_UNSHARE, sys.executable, __file__, *command]


def with_read_only_tmp(*command: str) -> Sequence[str]:
    """Return the command with a read-only /tmp."""
    return [
        *_UNSHARE,
        "sh",
        "-c",
        'mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp && exec "$@"',
        "sh",
        *command,
    ]


def _leave_only_ipv6() -> None:
    name = struct.pack("16s", b"lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        fcntl.ioctl(sock, _SIOCSIFADDR, name + struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("0.0.0.0")))
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        sock.bind(("::1", 0))  # else this machine has no IPv6


if __name__ == "__main__":
    _leave_only_ipv6()
    os.execvp(sys.argv[1], sys.argv[1:])
