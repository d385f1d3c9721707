"""Counts unzipped bodies in memory: a request is counted by its received size, and can grow a thousandfold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from txmsg.rocketmq.limits import BODY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb

_RATIO_MAX: Final = 1032
"""Maximum bytes to which one byte of GZIP can unzip."""
_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
# A quarter, so that one user, or one address, leaves room for others.
_OF_PAYER_BYTES_MAX: Final = _SIZE_BYTES_MAX // 4


class UnzippedSize:
    """The size of one body in memory: the maximum at first, the real size once it is known."""

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class UnzippedSizes:
    """The sizes of all bodies of a gateway. payer: a user, or an address. Belongs to one loop."""

    def __init__(self, size_bytes_max: int = _SIZE_BYTES_MAX, of_payer_bytes_max: int = _OF_PAYER_BYTES_MAX) -> None:
        self._size_bytes_max = size_bytes_max
        self._of_payer_bytes_max = of_payer_bytes_max
        self._of_payers: Counter[str] = Counter()
        self.size_bytes = 0

    @contextmanager
    def held(self, payer: str, sent: pb.Message) -> Iterator[UnzippedSize]:
        """Reserve room for this message's body while it is in memory; report its real size by `unzipped`.

        Raises CallRefused, before anything is unzipped.
        """
        held = UnzippedSize(0)
        if sent.system_properties.body_encoding == pb.GZIP:
            held.size_bytes = min(BODY_SIZE_BYTES_MAX, _RATIO_MAX * len(sent.body))
            is_over = (
                self.size_bytes + held.size_bytes > self._size_bytes_max
                or self._of_payers[payer] + held.size_bytes > self._of_payer_bytes_max
            )
            if is_over:
                self._forget_size(payer, 0)
                raise CallRefused(
                    pb.TOO_MANY_REQUESTS,
                    "zipped bodies that are being stored fill the memory: send fewer at once, or try again",
                )
            self._count(payer, held.size_bytes)
        try:
            yield held
        finally:
            self._forget_size(payer, held.size_bytes)

    def unzipped(self, payer: str, held: UnzippedSize, size_bytes: int) -> None:
        """Replace a body's reserved size by its real one."""
        if held.size_bytes:
            self._count(payer, size_bytes - held.size_bytes)
            held.size_bytes = size_bytes

    def _count(self, payer: str, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._of_payers[payer] += size_bytes

    def _forget_size(self, payer: str, size_bytes: int) -> None:
        self._count(payer, -size_bytes)
        if not self._of_payers[payer]:
            del self._of_payers[payer]
