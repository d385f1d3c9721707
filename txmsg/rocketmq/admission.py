"""Who makes a call, and whether it is allowed. Without access keys, every call is, as the gateway's own user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from txmsg.errors import shown
from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.limits import has_control
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.principal import ANYONE, Principal
from txmsg.wire.address import host_of
from txmsg.wire.table import network_of

_CLIENT_ID: Final = "x-mq-client-id"
_CLIENT_ID_LENGTH_MAX: Final = 512
"""Official clients join names of hosts, numbers of processes and the like. It is remembered for a minute."""


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who has made a call. client_id: the gateway's id of the client; clients of different users never share one."""

    client_id: str
    principal: Principal
    host: str = ""
    """Where the call comes from."""

    @property
    def payer(self) -> str:
        """Whom a share of the gateway is counted for: the user, or the address. Ids are chosen by clients."""
        return network_of(self.host) if self.principal is ANYONE else self.principal.name


class CallAdmission:
    """Admits every call."""

    async def enter(self, call: GrpcCall) -> GatewayCaller:
        """Identify the caller by the headers of the call; its request is read later.

        Raises CallRefused, TxmsgError.
        """
        return GatewayCaller(client_id_of(call.headers), ANYONE, host_of(call.peer))

    def closed(self) -> str:
        """Why nobody is admitted now; empty if callers may be."""
        return ""

    def staying(self, method: str, request: Any, caller: GatewayCaller) -> AbstractAsyncContextManager[object]:
        """Return a context for a call that may wait: it is cancelled as soon as the caller may no longer make the call.

        It then raises Unauthenticated or PermissionDenied.
        """
        del method, request, caller
        return nullcontext()

    def check(self, method: str, request: Any, caller: GatewayCaller) -> None:
        """Check that the caller may do this now. request: a frame, in a stream. Raises Unauthenticated,
        PermissionDenied.
        """
        del method, request, caller

    async def pace(self, method: str, request: Any, caller: GatewayCaller) -> None:
        """Return when the user's rates allow the call. Raises Overloaded, and what `check` raises."""
        del method, request, caller

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the result of `may_be_asked` may have changed."""
        del changed

    def may_be_asked(self, topic: str, caller: GatewayCaller) -> bool:
        """Whether this client may be asked for outcomes of this topic now: a check shows it the message."""
        del topic, caller
        return True

    def may_receive(self, group: str, topic: str, caller: GatewayCaller) -> bool:
        """Whether this client may still receive messages of this topic in this group, and so keep those that it has."""
        del group, topic, caller
        return True


def client_id_of(headers: Mapping[str, str]) -> str:
    """Return the id that the client sends. Raises CallRefused."""
    found = headers.get(_CLIENT_ID)
    if not found:
        raise CallRefused(pb.CLIENT_ID_REQUIRED, f"the header {_CLIENT_ID} is missing")
    if len(found) > _CLIENT_ID_LENGTH_MAX or has_control(found):
        raise CallRefused(
            pb.BAD_REQUEST,
            f"the header {_CLIENT_ID} is {shown(found)}, of {len(found)} characters: use at most "
            f"{_CLIENT_ID_LENGTH_MAX}, and no control character",
        )
    return found
