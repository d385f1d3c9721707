"""How much the windows of a broker hold in memory, over all groups and queues. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ROW_SIZE_BYTES", "Memory"]

ROW_SIZE_BYTES = 400
"""What a message takes beside its body and headers."""


@dataclass(slots=True, eq=False)
class Memory:
    """The weight of all messages that wait. When it is full, only windows with nothing ready read, and little."""

    size_bytes_max: float = math.inf
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether reading is to wait."""
        return self.size_bytes >= self.size_bytes_max
