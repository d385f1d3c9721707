"""Names of a package whose modules are imported when the names are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from txmsg.runtime.extras import lacking


def lazy_names(package: str, module_of: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. module_of: the module of each of its public names.

    A name that needs a package that is not installed raises ModuleNotFoundError with the extra that brings it.
    """

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(module_of[name]), name)
        except ModuleNotFoundError as exc:
            if (told := lacking(f"{package}.{name}", exc, module_of[name].split("."))) is None:
                raise
            raise ModuleNotFoundError(told, name=exc.name, path=exc.path) from exc
        # Set on the package, so that the next use of the name does not come here.
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(module_of)
