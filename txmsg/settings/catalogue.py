"""Settings: name, kind, default, bounds, meaning. The catalogue is the fields of the dataclasses of settings.

Options, variables, keys of the file, the page of the documentation and the checks of values are made from it. A field
gets its entry by `setting`; its kind follows from its default and from the unit at the end of its name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from txmsg.errors import MisuseError, shown
from txmsg.runtime.durations import SIZE_UNITS, duration_in, number_in, shown_duration, size_in

T = TypeVar("T")

_KEY: Final = "txmsg"
REQUIRED: Final = object()
"""The default of a setting that must be given."""
# The bounds of settings without their own: beyond them arithmetic overflows (times since 1970, int4 and int8 in SQL).
DURATION_S_MAX: Final = 50 * 365 * 86_400.0
COUNT_MAX: Final = 1_000_000_000
SIZE_BYTES_MAX: Final = 1024**6
_TRUE: Final = {"true", "yes", "on", "1"}
_FALSE: Final = {"false", "no", "off", "0"}
# Of a URL with user:password@, and of a libpq URL with the parameter password.
_PASSWORD: Final = re.compile(r"(?<=:)[^:/@]+(?=@)|(?<=password=)[^&]+")


class SettingKind(Enum):
    """The kind of a setting's values."""

    FLAG = "true or false"
    COUNT = "whole number"
    NUMBER = "number"
    DURATION = "duration"
    SIZE = "size"
    TEXT = "text"
    CHOICE = "choice"
    TEXTS = "list of texts"
    PATH = "path"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One entry of the catalogue."""

    name: str
    """The name within its scope: `first_check_s`, or `delivery.pause_failures` of a part."""
    scope: str
    """The server or client that it belongs to: broker, metaq, tailer, client."""
    kind: SettingKind
    default: object
    default_shown: str
    """The default in words, if it is computed at the start or has a special meaning."""
    meaning: str
    least: float | None
    most: float | None
    is_open: bool
    """True if the bounds themselves are not allowed."""
    choices: tuple[str, ...]
    metavar: str
    """The placeholder of a value in help; empty: that of its kind."""
    live: bool
    """True if running processes apply a change; otherwise it needs a restart."""
    option: str
    """`--first-check-s`; empty: only file and environment."""
    variable: str
    loses: str
    """A sentence about data that a change may delete for good, shown with a question before it; empty: none."""

    @property
    def full_name(self) -> str:
        """The name with its scope: broker.first_check_s."""
        return f"{self.scope}.{self.name}"

    # ---- values

    def value_of(self, given: object) -> Any:
        """Return the value that a source gives as text, or as a value of TOML. Raises MisuseError."""
        value = _CONVERT[self.kind](given)
        if value is None or not self._allows(value):
            raise MisuseError(f"the value {self.show(given)} is not {self.rule()}")
        return value

    def check(self, value: object) -> None:
        """Raises MisuseError unless a program may give this value for the field."""
        if value is None and self.default is None:
            return
        # A text in place of a number is a mistake in a program, although sources give all values as texts.
        of_other_kind = isinstance(value, str) and self.kind not in {SettingKind.TEXT, SettingKind.CHOICE}
        if of_other_kind or _CONVERT[self.kind](value) is None or not self._allows(value):
            raise MisuseError(f"{self.name}={self.show(value)} is not {self.rule()}")

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.is_open:
            return (self.least is None or value > self.least) and (self.most is None or value < self.most)
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def rule(self) -> str:
        """Return the rule of values in words: "a duration of at least 1s: a number of seconds, or 30s, 12h, 7d"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return " ".join(filter(None, (_ARTICLE[self.kind], self.bounds()))) + _WAY_OUT.get(self.kind, "")

    def bounds(self) -> str:
        """Return its bounds in words; empty without bounds."""
        low, high = ("above", "below") if self.is_open else ("of at least", "of at most")
        if self.least is not None and self.most is not None and not self.is_open:
            return f"from {self.in_words(self.least)} to {self.in_words(self.most)}"
        words = [f"{low} {self.in_words(self.least)}"] if self.least is not None else []
        words += [f"{high} {self.in_words(self.most)}"] if self.most is not None else []
        return " and ".join(words)

    def in_words(self, value: object) -> str:
        """Return a value as people write it and every source takes it, without a password in it."""
        match self.kind, value:
            case SettingKind.DURATION, float() | int():
                return shown_duration(value)
            case SettingKind.SIZE, float() | int():
                return _shown_size(round(value))
            case SettingKind.FLAG, bool():
                return "true" if value else "false"
            case SettingKind.TEXT, str():
                return _PASSWORD.sub("***", value)
            case SettingKind.TEXTS, tuple() | list():
                return " ".join(map(str, value))
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return "" if value is None else text

    def show(self, value: object) -> str:
        """Return a value for logs and terminals: without a password in it, and truncated."""
        return shown(_PASSWORD.sub("***", value) if isinstance(value, str) else value)

    def shown_default(self) -> str:
        """Return the default in words; "none" without one."""
        return self.default_shown or self.in_words(self.default) or "none"


def setting(
    default: T,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    is_open: bool = False,
    choices: tuple[str, ...] = (),
    metavar: str = "",
    live: bool = False,
    option: str = "",
    variable: str = "",
    kind: SettingKind | None = None,
    made: Callable[[], T] | None = None,
    shown: str = "",
    loses: str = "",
) -> T:
    """Return a field of a dataclass of settings, with its entry of the catalogue.

    is_open: the bounds are not allowed themselves. option: its name on the command line. made: makes the default when
    a process starts. shown: the default in words. loses: what a change may delete for good.
    """
    entry = {
        "meaning": meaning,
        "least": least,
        "most": most,
        "is_open": is_open,
        "choices": choices,
        "metavar": metavar,
        "live": live,
        "option": option,
        "variable": variable,
        "kind": kind,
        "default": default,
        "default_shown": shown,
        "loses": loses,
    }
    made_field: Any = (
        field(default=default, metadata={_KEY: entry})
        if made is None
        else field(default_factory=made, metadata={_KEY: entry})
    )
    result: T = made_field
    return result


def required(meaning: str, *, kind: SettingKind, option: str, metavar: str = "", variable: str = "") -> Any:
    """Return a field without a default: one of the sources must give its value."""
    optional: Any = setting(
        REQUIRED,
        meaning,
        kind=kind,
        option=option,
        metavar=metavar,
        variable=variable,
        shown="none; it must be given",
    )
    return field(metadata=optional.metadata)


def settings_of(config: type, scope: str = "", *, within: str = "") -> Iterator[Setting]:
    """Yield the catalogue of a dataclass: its own settings, then those of its parts."""
    for each in dataclasses.fields(config):
        entry = each.metadata.get(_KEY)
        if entry is not None:
            name = f"{within}{each.name}"
            own = {key: value for key, value in entry.items() if key not in {"kind", "variable"}}
            yield Setting(
                name=name,
                scope=scope,
                kind=entry["kind"] or _kind_of(name, entry["default"], entry["choices"]),
                variable=entry["variable"] or f"TXMSG_{scope}_{name.replace('.', '_')}".upper(),
                **own,
            )
    for each in dataclasses.fields(config):
        if is_dataclass(each.default_factory):
            yield from settings_of(each.default_factory, scope, within=f"{within}{each.name}.")


def check_settings(config: object) -> None:
    """Raises MisuseError for the first value of a dataclass of settings out of its bounds. Ignores its parts."""
    for each in settings_of(type(config)):
        if "." not in each.name:
            each.check(getattr(config, each.name))


def made_of(config: type[T], values: Mapping[str, object]) -> T:
    """Return a dataclass of settings with these values by name, those of parts by `part.name`; else defaults."""
    own: dict[str, object] = {}
    parts: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        part, dot, rest = name.partition(".")
        if dot:
            parts.setdefault(part, {})[rest] = value
        else:
            own[name] = value
    types = {each.name: each.default_factory for each in dataclasses.fields(config)}  # type: ignore[arg-type]
    for part, given in parts.items():
        made = types[part]
        assert isinstance(made, type)
        own[part] = made_of(made, given)
    return config(**own)


def _kind_of(name: str, default: object, choices: tuple[str, ...]) -> SettingKind:
    if choices:
        return SettingKind.CHOICE
    if isinstance(default, bool):
        return SettingKind.FLAG
    # By the name before the default's type: a duration may have an int, a float or None as its default.
    if name.endswith("_s") or "_s_" in name:
        return SettingKind.DURATION
    if "size_bytes" in name:
        return SettingKind.SIZE
    if isinstance(default, int):
        return SettingKind.COUNT
    return SettingKind.NUMBER if isinstance(default, float) else SettingKind.TEXT


def _flag(given: object) -> bool | None:
    if isinstance(given, bool):
        return given
    # Not bool(given): the text "false" is true to Python.
    text = given.lower() if isinstance(given, str) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def _count(given: object) -> int | None:
    if isinstance(given, str):
        return int(given) if re.fullmatch(r"-?[0-9]{1,18}", given) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _size(given: object) -> int | None:
    return size_in(given) if isinstance(given, str) else _count(given)


def _text(given: object) -> str | None:
    # One printable line: control characters in a value would reach terminals and logs.
    return given if isinstance(given, str) and given.isprintable() else None


def _path(given: object) -> Path | None:
    if isinstance(given, str) and given and given.isprintable():
        return Path(given).expanduser()
    return given if isinstance(given, Path) else None


def _texts(given: object) -> tuple[str, ...] | None:
    if isinstance(given, str):
        return tuple(given.split())
    if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        return tuple(given)
    return None


def _shown_size(size_bytes: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


_CONVERT: Final[Mapping[SettingKind, Callable[[object], object]]] = {
    SettingKind.FLAG: _flag,
    SettingKind.COUNT: _count,
    SettingKind.NUMBER: number_in,
    SettingKind.DURATION: duration_in,
    SettingKind.SIZE: _size,
    SettingKind.TEXT: _text,
    SettingKind.CHOICE: _text,
    SettingKind.TEXTS: _texts,
    SettingKind.PATH: _path,
    SettingKind.FILE: _path,
}
_ARTICLE: Final = {
    SettingKind.FLAG: "true or false",
    SettingKind.COUNT: "a whole number",
    SettingKind.NUMBER: "a number",
    SettingKind.DURATION: "a duration",
    SettingKind.SIZE: "a size",
    SettingKind.TEXT: "a text on one line",
    SettingKind.CHOICE: "a choice",
    SettingKind.TEXTS: "a list of texts",
    SettingKind.PATH: "a path",
    SettingKind.FILE: "the path of a file",
}
_WAY_OUT: Final = {
    SettingKind.DURATION: "; give a number of seconds, or 30s, 12h, 7d",
    SettingKind.SIZE: "; give bytes, or 512KiB, 64MiB, 100GiB",
}
