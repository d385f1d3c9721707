"""A minimal Debian as a directory, and commands that run in copies of it.

A copy is an overlay over the directories of the system, mounted in namespaces that end with the command: after it, or
after SIGKILL, no mount is left. Only the directory of its changes is, which another copy can be made of.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.fresh_system.package_index import passed_environment, passed_files
from tools.fresh_system.processes import Outcome, delete, run, say

PACKAGES: Final = "python3-venv,make,git,ca-certificates"
"""Packages named by the README; git for the clone, and certificates for pip."""
BUNDLE: Final = "/srv/txmsg.bundle"
PYTHON: Final = "/opt/python"
DEBOOTSTRAP_S: Final = 1800
USERS: Final = {"root": 0, "user": 1000, "nameless": 4321}
"""Those who can run a command, with their ids. nameless: an id that no file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A release of Debian."""

    title: str
    suite: str


SYSTEMS: Final = {
    "debian-12": System(title="Debian 12", suite="bookworm"),
    "debian-13": System(title="Debian 13", suite="trixie"),
    "debian-unstable": System(title="Debian unstable", suite="sid"),
}


class NoSystem(Exception):
    """Raised if a system cannot be created: the text has the reason and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of a command. None: unlimited."""

    cores: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Layers of directories, the base last; changes go to the first. bundle: the commit to clone. python: a prefix."""

    layers: Sequence[Path]
    bundle: Path
    python: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        user: str = "root",
        environment: Mapping[str, str | None] | None = None,
        prepare: str = "",
        own_network: bool = False,
    ) -> Outcome:
        """Run a command for sh. prepare: commands that root runs before, outside, with the system's root as $ROOT."""
        uid = USERS[user]
        wanted = variables(user, os.environ) | dict(environment or {})
        script = "\n".join(
            [
                "set -eu",
                *self._joining(),
                *self._mounting(),
                prepare,
                f"chroot --userspec={uid}:{uid} --groups={uid} . /usr/bin/env --ignore-environment "
                + " ".join(shlex.quote(f"{name}={value}") for name, value in wanted.items() if value is not None)
                + f" /bin/sh -c {shlex.quote(command)} && code=0 || code=$?",
                "exit $code",  # not exec: the first process of a system also reaps orphans
            ]
        )
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", *["--net"] * own_network]
        cores = sorted(os.sched_getaffinity(0))[: self.limits.cores]
        pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        try:
            return run([*pinned, "unshare", *namespaces, "sh", "-c", script], timeout_s=timeout_s)
        finally:
            if group := self._group():
                group.rmdir()

    def _mounting(self) -> list[str]:
        changes = self.layers[0]
        work, root = changes.with_name(changes.name + ".work"), changes.with_name(changes.name + ".root")
        for directory in (changes, work, root):
            directory.mkdir(parents=True, exist_ok=True)
        lower = ":".join(str(layer) for layer in self.layers[1:])
        files = passed_files(os.environ, Path.home()) | {str(self.bundle): BUNDLE}
        if self.python:
            files[str(self.python)] = PYTHON
        return [
            f"mount -t overlay overlay -o lowerdir={lower},upperdir={changes},workdir={work} {root}",
            f"cd {root}; ROOT={root}",
            "mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; mount -t tmpfs -o mode=755 tmpfs dev",
            "for n in null zero full random urandom tty; do touch dev/$n; mount --bind /dev/$n dev/$n; done",
            "mkdir dev/pts dev/shm; mount -t tmpfs -o mode=1777 tmpfs dev/shm",
            "mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts; ln -s pts/ptmx dev/ptmx",
            "ln -s /proc/self/fd dev/fd; for n in 0:stdin 1:stdout 2:stderr; do ln -s fd/${n%:*} dev/${n#*:}; done",
            "hostname fresh; printf '127.0.0.1 localhost fresh\\n::1 localhost\\n' >etc/hosts",
            *(bound(source, target) for source, target in files.items()),
        ]

    def _group(self) -> Path | None:
        """Return the directory of the control group, if memory is limited. Its name has the id of this process."""
        if self.limits.memory_mib is None:
            return None
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        return memory_groups(mounts) / f"txmsg-{os.getpid()}"

    def _joining(self) -> list[str]:
        if not (group := self._group()):
            return []
        group.mkdir(exist_ok=True)
        limit = str(self.limits.memory_mib * 2**20) if self.limits.memory_mib else "max"
        name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        (group / name).write_text(limit, encoding="ascii")
        return [f"echo 0 >{group}/cgroup.procs"]


def memory_groups(mounts: Sequence[str]) -> Path:
    """Return where memory control groups are created: in cgroup v2 if it has that controller, or in v1."""
    for line in mounts:
        _, point, kind, options, *_ = line.split(" ")
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(point)
        controllers = Path(point) / "cgroup.controllers"
        if kind == "cgroup2" and "memory" in controllers.read_text(encoding="ascii").split():
            with (Path(point) / "cgroup.subtree_control").open("w", encoding="ascii") as file:
                file.write("+memory")
            return Path(point)
    raise NoSystem("memory cannot be limited: no control group has the controller memory")


def bound(source: str, target: str) -> str:
    """Mount a file or directory read-only; its parents are created."""
    path = shlex.quote(target.lstrip("/"))
    made = f"mkdir -p {path}" if Path(source).is_dir() else f"mkdir -p $(dirname {path}); rm -f {path}; touch {path}"
    return f"{made}; mount --bind {shlex.quote(source)} {path}; mount -o remount,bind,ro {path}"


def variables(user: str, host: Mapping[str, str]) -> dict[str, str | None]:
    """Return the environment of a user's login, with the locations of packages."""
    passed = passed_environment(host)
    if "/etc/pip-of-user.conf" in passed_files(host, Path.home()).values():
        passed["PIP_CONFIG_FILE"] = "/etc/pip-of-user.conf"
    home = {"root": "/root", "user": "/home/user"}.get(user, "/")
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": home, "TERM": "dumb", **passed}


def base_of(system: System, place: Path) -> Path:
    """Return the directory of a minimal system; creates it if it is missing."""
    base = place / system.suite
    if base.is_dir():
        return base
    say(f"making {system.title} in {base}, once")
    part = base.with_name(base.name + ".part")
    delete(part)
    part.mkdir(parents=True)
    # In namespaces, because debootstrap mounts /proc in it, and leaves it there if it is interrupted.
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    add_user = f"chroot {part} useradd --uid {USERS['user']} --create-home user"
    script = f"debootstrap --variant=minbase --include={PACKAGES} {system.suite} {part} && {add_user}"
    outcome = run([*namespaces, "sh", "-c", script], timeout_s=DEBOOTSTRAP_S)
    if outcome.code:
        raise NoSystem("\n".join([f"debootstrap made no {system.title}:", *outcome.lines[-10:]]))
    return part.rename(base)
