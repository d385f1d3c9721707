"""Handlers of a server: its methods by name, and the maximum size of their requests. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.method import Method, methods_of
from txmsg.wire.server_call import Handler
from txmsg.wire.values import SIZE_BYTES_MAX


class Handlers:
    """The handler of each method.

    services: the object that answers each service, by the generated class that lists its methods: with a method of the
    same name, as `async def send(request) -> reply`; or, where messages are many, with a `ServerCall`: `attach(call)`,
    `fetch(request, call)`; or, where a request has data, with that: `append(request, data) -> reply`. A handler that is
    marked by `with_call` gets a `ServerCall`, too.

    larger_requests: sizes of requests that may be larger than `request_size_bytes_max`, by the method's name.
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
        """Return the method of this name and its handler; None if it is not known here."""
        return self._by_name.get(name)

    def request_size_bytes_max(self, name: str) -> int:
        """Return the size of a request of this method in bytes, at most."""
        if (found := self.find_method(name)) is not None and found[0].is_json:
            return SIZE_BYTES_MAX
        return self._larger_requests.get(name, self._request_size_bytes_max)
