"""Identifies callers, and checks their calls. Without access keys every call is allowed, as the gateway's own user."""

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
"""Maximum characters of a client id: host names, process numbers and the like. Ids are remembered for a minute."""


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """The caller of a call. client_id: the gateway's id of the client; clients of different users never share one."""

    client_id: str
    principal: Principal
    host: str = ""
    """The address of the client."""

    @property
    def payer(self) -> str:
        """The user, or the address, to which a share of the gateway is charged. Not the client id, which clients
        choose.
        """
        return network_of(self.host) if self.principal is ANYONE else self.principal.name


class CallAdmission:
    """An admission that allows every call."""

    async def enter(self, call: GrpcCall) -> GatewayCaller:
        """Identify the caller by the headers of the call; its request is read later.

        Raises CallRefused, TxmsgError.
        """
        return GatewayCaller(client_id_of(call.headers), ANYONE, host_of(call.peer))

    def closed(self) -> str:
        """Return the reason why all callers are refused now; empty if they are not."""
        return ""

    def staying(self, method: str, request: Any, caller: GatewayCaller) -> AbstractAsyncContextManager[object]:
        """Return a context for a call that may wait: it is cancelled as soon as the caller may no longer make the call.

        It then raises Unauthenticated or PermissionDenied.
        """
        del method, request, caller
        return nullcontext()

    def check(self, method: str, request: Any, caller: GatewayCaller) -> None:
        """Raise Unauthenticated or PermissionDenied unless the caller may do this now. request: a frame, in
        a stream.
        """
        del method, request, caller

    async def pace(self, method: str, request: Any, caller: GatewayCaller) -> None:
        """Wait until the user's rates allow the call. Raises Overloaded, and the errors of `check`."""
        del method, request, caller

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the result of `may_be_asked` may have changed."""
        del changed

    def may_be_asked(self, topic: str, caller: GatewayCaller) -> bool:
        """Return True if this client may be asked for outcomes of this topic now: a check shows it the message."""
        del topic, caller
        return True

    def may_receive(self, group: str, topic: str, caller: GatewayCaller) -> bool:
        """Return True if this client may still receive this topic in this group, and so keep the messages
        that it has.
        """
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
