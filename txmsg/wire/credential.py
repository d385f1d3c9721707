"""The source of a client's token. Read for each connection, so that a rotation needs no restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

from txmsg.errors import MisuseError
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.tokens import is_token
from txmsg.wire.address import is_loopback
from txmsg.wire.tls import TlsChoice, client_context

TOKEN_VARIABLE: Final = "TXMSG_TOKEN"
TOKEN_FILE_VARIABLE: Final = "TXMSG_TOKEN_FILE"
"""Takes precedence over TOKEN_VARIABLE."""
_log = EventLog(__name__)


class ClientToken:
    """The token that a client sends to servers with authentication. Never shown in a repr, log or error."""

    def __init__(self, where: str, read: Callable[[], str]) -> None:
        self._where = where
        self._read = read
        self._last = self._checked(read())

    def __repr__(self) -> str:
        return f"ClientToken({self._where})"

    def __bool__(self) -> bool:
        return bool(self._last)

    def read(self) -> str:
        """Return the current token, "" for none. If it cannot be read, log that and return the previous one."""
        try:
            self._last = self._checked(self._read())
        except (MisuseError, OSError) as exc:
            _log.error("access.token_unreadable", "the token before is used, %(error)s", error=exc)
        return self._last

    def for_host(self, host: str, *, is_protected: bool) -> str:
        """Return the current token, for a connection to this host. Raises MisuseError where others could read it on the
        network."""
        token = self.read()
        # Refused rather than logged: a token that was sent once in clear text has to be replaced, and a client with a
        # forgotten tls= would send it at each connection.
        if token and not is_protected and not is_loopback(host):
            raise MisuseError(
                f"the token of {self._where} is not sent to {host} without TLS, where others could read it: give tls=, "
                "or set TXMSG_TLS_CA"
            )
        return token

    def _checked(self, text: str) -> str:
        text = text.strip()
        if text and not is_token(text):
            raise MisuseError(
                f"{self._where} is not a token of txmsg (txmsg_..., as `txmsg user create NAME` prints it); give a "
                "pathlib.Path for a file that holds one"
            )
        return text


TokenChoice: TypeAlias = str | Path | Callable[[], str] | ClientToken | None
"""A user's `token=`: a token, the path of a file with one, or a function that returns one; None takes it from the
environment, "" is no token."""


def client_token(token: TokenChoice) -> ClientToken:
    """Return the meaning of a user's `token=`. Raises MisuseError."""
    if isinstance(token, ClientToken):
        return token
    if token is None:
        if file := os.environ.get(TOKEN_FILE_VARIABLE, ""):
            return _of_file(Path(file), TOKEN_FILE_VARIABLE)
        value = os.environ.get(TOKEN_VARIABLE, "")
        return ClientToken(TOKEN_VARIABLE, lambda: value)
    if isinstance(token, Path):
        return _of_file(token, "token")
    if isinstance(token, str):
        return _of_text(token)
    check_token(token)
    return ClientToken("the function token=", token)


def check_token(token: object) -> None:
    """Raise MisuseError for an invalid `token=`. Reads no file, and does not call a function."""
    if isinstance(token, str):
        _of_text(token)
    elif not (token is None or isinstance(token, Path | ClientToken) or callable(token)):
        raise MisuseError(f"token is a {type(token).__name__}, not a token, the Path of a file or a function")


class ClientAccess(TypedDict):
    """Credentials of a client, for everything that connects to servers: `Brokers(addresses, **access)`."""

    tls: TlsChoice
    token: TokenChoice


def client_access(tls: TlsChoice, token: TokenChoice) -> ClientAccess:
    """Return the meaning of a user's `tls=` and `token=`, read once. Raises MisuseError."""
    return ClientAccess(tls=client_context(tls) or False, token=client_token(token))


def _of_text(token: str) -> ClientToken:
    return ClientToken("token=", lambda: token)


def _of_file(path: Path, what: str) -> ClientToken:
    def read() -> str:
        try:
            return path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise MisuseError(f"{what} names the file {path}, which cannot be read as a token: {reason}") from None

    return ClientToken(str(path), read)
