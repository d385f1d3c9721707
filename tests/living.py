"""Find the objects of a class that are in memory."""

from __future__ import annotations

import gc
from typing import TypeVar

Kind = TypeVar("Kind")


def living(*kinds: type[Kind]) -> list[Kind]:
    """Return all objects of the class that the garbage collector knows, including those of earlier tests.

    Their own class counts: `isinstance` would also ask for `__class__`, which a lazy object of Django answers by
    looking for settings.
    """
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]
