"""Registering a user as it was done before messages (figures 3-1 and 3-2 of the seed): by calling every subscriber.

One broken subscriber fails the registration either way, after the user row is already there.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from txmsg.ops.demo.examples.user_registration.service import SessionLocal, create_user
from txmsg.ops.demo.registration.web import RegistrationCaller


class DirectCalls:
    """Calls the subscribers of `addresses` (group to host:port) from inside the registration."""

    def __init__(self, addresses: Mapping[str, str], *, callers: int) -> None:
        self._addresses = list(addresses.values())
        self._caller = RegistrationCaller()
        self._pool = ThreadPoolExecutor(max_workers=callers * len(addresses), thread_name_prefix="direct-call")

    def register_serially(self, user_id: UUID, email: str) -> None:
        """The user waits for the sum of all steps."""
        self._core_step(user_id, email)
        for address in self._addresses:
            self._call(address, user_id)

    def register_in_parallel(self, user_id: UUID, email: str) -> None:
        """The user waits for the slowest step."""
        self._core_step(user_id, email)
        calls = [self._pool.submit(self._call, address, user_id) for address in self._addresses]
        for call in calls:
            call.result()

    def _core_step(self, user_id: UUID, email: str) -> None:
        with SessionLocal.begin() as session:
            create_user(session, user_id, email)

    def _call(self, address: str, user_id: UUID) -> None:
        status, answer = self._caller.post(address, {"user_id": str(user_id)})
        if status != 200:
            raise RuntimeError(f"the subscriber at {address} answered {status}: {answer}")
