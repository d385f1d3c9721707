"""SQL calls by which a broker writes a batch, for tests and benchmarks that build such calls themselves.

Arguments are named as those of the function, without `p_`; columns that are not given are empty.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_SQL: Final = files("txmsg.broker.migrations").joinpath("0001/11_batch.sql").read_text()
_USUAL: Final = {"incarnation": "null", "segment": "1", "previous": "0", "first_check": "'6 s'"}


def apply_batch(**given: str) -> str:
    """Call of the function, to be selected from; does not commit."""
    return f"txmsg.apply_batch({_arguments('function txmsg.apply_batch', given)})"


def write_batch(**given: str) -> str:
    """Call of the procedure; commits."""
    return f"txmsg.write_batch({_arguments('procedure txmsg.write_batch', given)})"


def _arguments(what: str, given: dict[str, str]) -> str:
    [declared] = re.findall(rf"create {re.escape(what)}\((.*?)^\) (?:returns|language)", _SQL, re.DOTALL | re.MULTILINE)
    taken = {name: given.get(name, _USUAL.get(name, "'{}'")) for name in re.findall(r"\bp_(\w+)", declared)}
    strange = given.keys() - taken.keys()
    if strange:
        raise TypeError(f"{what} has no arguments {sorted(strange)}, but {sorted(taken)}")
    told = [f"p_{name} => {value}" for name, value in taken.items()]
    return ", ".join([*told, *(f"{name} => null" for name in re.findall(r"\bout (\w+)", declared))])
