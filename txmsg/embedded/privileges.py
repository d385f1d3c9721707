"""Gives up root for the owner of a cluster. PostgreSQL refuses to run as root."""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from collections.abc import Callable

from txmsg.embedded.place import Place

__all__ = ["become_owner_of", "cluster_uid"]


def cluster_uid(place: Place) -> int:
    """Who runs the server: the owner of an existing cluster, else the starting user, for root `nobody`."""
    uid = place.cluster.stat().st_uid if place.cluster.exists() else os.geteuid()
    return uid if uid != 0 else pwd.getpwnam("nobody").pw_uid


def become_owner_of(place: Place) -> None:
    """Gives up root for good, keeping the one capability to pass through directories closed to the new user."""
    user = pwd.getpwuid(cluster_uid(place))
    for path in (place.root, place.socket_dir, place.log):
        os.chown(path, user.pw_uid, user.pw_gid)
    os.environ["HOME"] = str(place.root)
    keep = _keep_capability if sys.platform == "linux" else _nothing
    finish = keep()
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    finish()


def _nothing() -> Callable[[], None]:
    return lambda: None


def _keep_capability() -> Callable[[], None]:
    """Prepares setuid so that a capability outlives it, into programs too; call the result after setuid.

    See capabilities(7). Where the container grants neither capability, none is kept: PostgreSQL then works if its
    files are readable to all, and its own error message says so if not.
    """
    version, dac_override, dac_read_search = 0x20080522, 1, 2
    pr_set_keepcaps, pr_cap_ambient, pr_cap_ambient_raise = 8, 47, 2
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(version, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities from 32 on
    if libc.capget(header, data) != 0:
        return _nothing()
    capability = next((cap for cap in (dac_read_search, dac_override) if data[1] & 1 << cap), None)
    if capability is None or libc.prctl(pr_set_keepcaps, 1, 0, 0, 0) != 0:
        return _nothing()

    def finish() -> None:
        mask = 1 << capability
        if libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)) == 0:
            libc.prctl(pr_cap_ambient, pr_cap_ambient_raise, capability, 0, 0)

    return finish
