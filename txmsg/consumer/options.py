"""Options of consumers of both sources: declared, explained and checked here, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, cast
from uuid import uuid4

from txmsg.errors import MisuseError, shown
from txmsg.message import check_name
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.credential import TokenChoice
from txmsg.wire.start import Start, check_group_start
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing

P = ParamSpec("P")

CONCURRENCY: Final = 16
CLOSE_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S_MAX: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer of either source. Raises MisuseError for invalid values."""

    concurrency: int = CONCURRENCY
    """Handlers that run at once, `def` and `async def` ones each; of a log, queues. Default 16, at most 4096."""
    close_timeout_s: Seconds = CLOSE_TIMEOUT_S
    """Seconds that `close` waits for handlers. Default 30, at most a day. 0 does not wait."""
    start: Start | None = None
    """Start of a group that is new to a topic. Default: the topic's earliest message, or the latest if it
    broadcasts."""
    broadcast: bool | str = False
    """True or the name of an instance if each member gets every message; a named instance continues where it was."""
    tls: TlsChoice = None
    """Verification of servers. Default: by the variable TXMSG_TLS_CA."""
    token: TokenChoice = None
    """Token of a user, if servers require authentication. Default: by TXMSG_TOKEN_FILE or TXMSG_TOKEN."""
    tracing: Tracing | None = None
    """Traces the handlers."""
    encryption: Encryption | None = None
    """Decrypts bodies for the handlers."""

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency, most=CONCURRENCY_MAX)
        check_seconds("close_timeout_s", self.close_timeout_s, least_s=0, most_s=CLOSE_TIMEOUT_S_MAX)
        check_group_start(self.start, default=self.start_by_default)
        self.group_of_member("g")

    @property
    def start_by_default(self) -> Start:
        """The start of a new group if `start` is None."""
        return Start.earliest() if self.broadcast is False else Start.latest()

    def group_of_member(self, group: str) -> str:
        """Return the group; for a broadcasting member its own, GROUP%INSTANCE. Raises MisuseError."""
        check_name("consumer group", group)
        if self.broadcast is False:
            return group
        instance = uuid4().hex if self.broadcast is True else self.broadcast
        if not isinstance(instance, str) or "%" in instance:
            raise MisuseError(
                f"broadcast={shown(self.broadcast)} is neither True nor the name of an instance: give one that is this "
                "process's own and stays the same over restarts, such as its host's name, without %"
            )
        return check_name("consumer group", f"{group}%{check_name('broadcast instance', instance)}")


def check_count(name: str, value: object, *, most: int) -> int:
    """Return `value` if it is a whole number from 1 to `most`. Raises MisuseError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise MisuseError(f"{name}={shown(value)} must be a whole number from 1 to {most}")


def made_as(core: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that gives a pass-through constructor the parameters of the class that it passes them to."""

    def decorated(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        of_core = signature(core)
        own = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *of_core.parameters.values()]
        constructor.__signature__ = of_core.replace(parameters=own)  # type: ignore[attr-defined]
        return cast(Callable[Concatenate[Any, P], None], constructor)

    return decorated
