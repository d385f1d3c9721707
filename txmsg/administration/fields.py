"""Fields of a change for command line and console, each declared once, in its dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from txmsg.wire.values import NumberRange

_KEY: Final = "txmsg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeField:
    """A field of a change. kind: int, float, bool or str; `choices` are those of a str. A name in _s is a duration."""

    name: str
    kind: type
    choices: Sequence[str] = ()
    bounds: NumberRange | None = None
    option: str
    """The command's option, without dashes."""
    help: str

    @property
    def is_duration(self) -> bool:
        """True for a duration, given in seconds or as `12h`."""
        return self.kind is float and self.name.endswith("_s")


def setting(help: str, *, option: str = "") -> Any:
    """Return a field of a change that is None unless given. option: its option's name, if not the field's name."""
    return field(default=None, metadata={_KEY: (help, option)})


def settings_of(change: type[Any]) -> Mapping[str, ChangeField]:
    """Return the fields of a change, by name."""
    # With extras: the NumberRange in an Annotated type is the bounds of the field.
    hints = get_type_hints(change, include_extras=True)
    return {each.name: _setting_of(each.name, hints[each.name], *each.metadata[_KEY]) for each in fields(change)}


def _setting_of(name: str, hint: Any, help: str, option: str) -> ChangeField:
    (kind,) = (each for each in get_args(hint) if each is not NoneType)
    kind, *bounds = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    return ChangeField(
        name=name,
        kind=str if choices else kind,
        choices=choices,
        bounds=bounds[0] if bounds else None,
        option=option or name.replace("_", "-"),
        help=help,
    )
