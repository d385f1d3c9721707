"""The circumstances in which `make demo` has to pass: a table of differences from a login on a fresh machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tools.fresh_system.place import Limits

CLONE: Final = "/srv/place/txmsg"
LONG: Final = "/tmp/" + "long" * 30
_ALONE: Final = "ip link set lo up"
_NO_NAMES: Final = "umount etc/resolv.conf; echo nameserver 127.0.0.1 >etc/resolv.conf"
_SILENT: Final = (
    f"{_NO_NAMES}; python3 -c 'import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); "
    's.bind(("127.0.0.1", 53)); time.sleep(1e6)\' & '
    "until grep -q :0035 /proc/net/udp; do sleep 0.1; done"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """One row.

    users: who runs the demo, of place.USERS. environment: variables, None removes one. prepare: what root does before,
    outside, in the system's root directory. before: what the user's shell does before. own_network: there is only
    loopback. clone: where the clone is; another one than CLONE is made, and installed, by the user. end: part of the
    line that the demo has to end with, where it cannot run.
    """

    meaning: str
    users: tuple[str, ...] = ("root", "user")
    environment: Mapping[str, str | None] = field(default_factory=dict)
    prepare: str = ""
    before: str = ""
    own_network: bool = False
    limits: Limits = field(default_factory=Limits)
    clone: str = CLONE
    end: str = ""


CIRCUMSTANCES: Final = {
    "plain": Circumstance(meaning="nothing differs"),
    "home-unset": Circumstance(meaning="HOME is not set", environment={"HOME": None}),
    "home-missing": Circumstance(meaning="HOME names no directory", environment={"HOME": "/home/missing"}),
    "home-read-only": Circumstance(
        meaning="HOME is on a read-only file system",
        environment={"HOME": "/home/read-only"},
        prepare="mkdir home/read-only; mount -t tmpfs -o ro tmpfs home/read-only",
    ),
    "home-space": Circumstance(
        meaning="HOME has a space in its name",
        environment={"HOME": "/home/with a space"},
        prepare="mkdir -m 1777 'home/with a space'",
    ),
    "umask-077": Circumstance(meaning="umask is 077", before="umask 077"),
    "no-shm": Circumstance(meaning="there is no /dev/shm", prepare="umount dev/shm; rmdir dev/shm"),
    "lang-c": Circumstance(meaning="LANG=C", environment={"LANG": "C"}),
    "lc-all-posix": Circumstance(meaning="LC_ALL=POSIX", environment={"LC_ALL": "POSIX"}),
    "lang-zh-missing": Circumstance(
        meaning="LANG=zh_CN.UTF-8, which is not installed", environment={"LANG": "zh_CN.UTF-8"}
    ),
    "lang-zh": Circumstance(
        meaning="LANG=zh_CN.UTF-8, installed",
        environment={"LANG": "zh_CN.UTF-8"},
        prepare="chroot . sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get -qq update && apt-get -qq install -y "
        "--no-install-recommends locales >/dev/null 2>&1 && localedef -i zh_CN -f UTF-8 zh_CN.UTF-8'",
    ),
    "closed-parent": Circumstance(
        meaning="the clone is below a directory of mode 0700", prepare="chmod 0700 srv/place"
    ),
    "clone-space": Circumstance(
        meaning="the path of the clone has a space",
        clone="/srv/with a space/txmsg",
        prepare="mkdir -m 1777 'srv/with a space'",
    ),
    "small": Circumstance(meaning="one core and 2 GiB", limits=Limits(cores=1, memory_mib=2048)),
    "smaller": Circumstance(meaning="one core and 1 GiB", limits=Limits(cores=1, memory_mib=1024)),
    "smallest": Circumstance(meaning="one core and 512 MiB", limits=Limits(cores=1, memory_mib=512), end="Killed"),
    "no-host-name": Circumstance(
        meaning="the host name does not resolve",
        prepare=f"{_ALONE}; {_NO_NAMES}; printf '127.0.0.1 localhost\\n::1 localhost\\n' >etc/hosts",
        own_network=True,
    ),
    "silent-resolver": Circumstance(
        meaning="the host name does not resolve, and the name server does not answer",
        prepare=f"{_ALONE}; {_SILENT}; printf '127.0.0.1 localhost\\n::1 localhost\\n' >etc/hosts",
        own_network=True,
    ),
    "no-hosts": Circumstance(
        meaning="there is no /etc/hosts, and the name server does not answer",
        prepare=f"{_ALONE}; {_SILENT}; rm etc/hosts",
        own_network=True,
    ),
    "no-ipv6": Circumstance(
        meaning="there is no IPv6",
        prepare=f"{_ALONE}; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; {_NO_NAMES}; "
        "echo 127.0.0.1 localhost fresh >etc/hosts",
        own_network=True,
    ),
    "only-ipv6": Circumstance(
        meaning="there is only IPv6",
        prepare=f"{_ALONE}; ip address del 127.0.0.1/8 dev lo; {_NO_NAMES}; echo ::1 localhost fresh >etc/hosts",
        own_network=True,
    ),
    "tmpdir-other-disk": Circumstance(
        meaning="TMPDIR is on another disk",
        environment={"TMPDIR": "/mnt"},
        prepare="mount -t tmpfs -o mode=1777 tmpfs mnt",
    ),
    "tmpdir-nearly-full": Circumstance(
        meaning="TMPDIR is on a disk of 100 GiB that is 93 percent full",
        environment={"TMPDIR": "/mnt"},
        prepare="truncate -s 100G srv/disk && mkfs.ext4 -q -m 0 srv/disk && mount -o loop srv/disk mnt && "
        "chmod 1777 mnt && fallocate -l 92G mnt/ballast",
    ),
    "tmpdir-long": Circumstance(
        meaning="TMPDIR has 125 bytes (the path of a socket can have 107)",
        environment={"TMPDIR": LONG},
        prepare=f"mkdir -m 1777 .{LONG}",
    ),
    "tmpdir-space": Circumstance(
        meaning="TMPDIR has a space in its name",
        environment={"TMPDIR": "/tmp/with a space"},
        prepare="mkdir -m 1777 'tmp/with a space'",
    ),
    "tmpdir-missing": Circumstance(meaning="TMPDIR names no directory", environment={"TMPDIR": "/tmp/missing"}),
    "tmp-read-only": Circumstance(
        meaning="/tmp is on a read-only file system", prepare="mount -t tmpfs -o ro tmpfs tmp"
    ),
    "no-name": Circumstance(
        meaning="the user's id has no name",
        users=("nameless",),
        end="Error: PostgreSQL's initdb needs a user with a name",
    ),
    "warnings": Circumstance(meaning="each warning of Python is an error", environment={"PYTHONWARNINGS": "error"}),
    "closed-stdin": Circumstance(meaning="standard input is closed", before="exec <&-"),
}
