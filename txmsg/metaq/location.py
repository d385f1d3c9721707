"""A log by where it is: a directory, or the address of a server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from txmsg.metaq.access import LogAccess
from txmsg.metaq.local import LocalLog
from txmsg.metaq.store.log import LogConfig
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

_ADDRESS = re.compile(r"unix:|[^/]*:[0-9]{1,5}\Z")


def open_log(
    where: str | os.PathLike[str],
    *,
    append: bool = False,
    config: LogConfig | None = None,
    tls: TlsChoice = None,
    token: TokenChoice = None,
    timeout_s: float = 15.0,
) -> LogAccess:
    """The log in a directory, or at the address of a server: "HOST:PORT" or "unix:PATH".

    append: whether this process is to be the one writer of a directory; it is made when missing, and kept as `config`
    says. A server says itself who may append. A directory whose name looks like an address is written "./NAME:1". tls,
    token: for an address, as producers have them. timeout_s: how long calls to a server are tried.

    Raises StorageError when another process writes the log, CorruptLog when there is none, or it is damaged.
    """
    text = os.fspath(where)
    if isinstance(where, str) and _ADDRESS.match(text):
        from txmsg.metaq.remote.remote_log import RemoteLog

        return RemoteLog(text, tls=tls, token=token, timeout_s=timeout_s)
    return LocalLog(Path(text), append=append, config=config)
