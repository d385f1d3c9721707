"""Which objects of a class are in memory."""

from __future__ import annotations

import gc
from typing import TypeVar

Kind = TypeVar("Kind")


def living(*kinds: type[Kind]) -> list[Kind]:
    """All that the garbage collector knows of, whatever else a test before has left there.

    Their own class counts: `isinstance` would also ask for `__class__`, which a lazy object of Django answers by
    looking for settings.
    """
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]
