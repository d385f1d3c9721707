"""What a server answers: its methods by name, and how large their requests may be. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.method import Method, methods_of
from txmsg.wire.server_call import Handler
from txmsg.wire.values import SIZE_BYTES_MAX


class Handlers:
    """What answers each method.

    services: what answers the methods of each, by the generated class that lists them: a method of the same name, as
    `async def send(request) -> reply`; or, where messages are many, with a `ServerCall`: `attach(call)`,
    `fetch(request, call)`; or, where a request has data, with that: `append(request, data) -> reply`. One that is
    marked by `with_call` gets a `ServerCall`, too.
    larger_requests: the size of those that may be larger than `request_size_bytes_max`, by the method's name.
    """

    def __init__(
        self,
        services: Mapping[type, object],
        *,
        request_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX,
        larger_requests: Mapping[str, int] = {},
    ) -> None:
        self._by_name: dict[str, tuple[Method[Any, Any], Handler]] = {
            method.name: (method, getattr(answering, name))
            for service, answering in services.items()
            for name, method in methods_of(service).items()
        }
        self._request_size_bytes_max = request_size_bytes_max
        self._larger_requests = larger_requests

    def find_method(self, name: str) -> tuple[Method[Any, Any], Handler] | None:
        """The method of this name, and what answers it; None if it is not known here."""
        return self._by_name.get(name)

    def request_size_bytes_max(self, name: str) -> int:
        """How large a request of this method may be."""
        if (found := self.find_method(name)) is not None and found[0].is_json:
            return SIZE_BYTES_MAX
        return self._larger_requests.get(name, self._request_size_bytes_max)
