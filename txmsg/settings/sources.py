"""Sources of the values of settings: defaults < file < environment < command line < run-time store.

An error names the place (file and line, variable, option), the value, the rule, and what to give.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from txmsg.errors import MisuseError, shown
from txmsg.runtime.owners import refusal_text
from txmsg.settings.catalogue import Setting

CONFIG_VARIABLE: Final = "TXMSG_CONFIG"
"""The variable that names the file."""
DEFAULT: Final = "default"
SCOPES: Final = ("broker", "metaq", "tailer", "rocketmq")
"""The servers whose settings come from tables of a file, variables and options. Clients get theirs from brokers."""
COMMANDS_TABLE: Final = "cli"
"""The table with the defaults of commands' options."""

_TABLE: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
_ENTRY: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of a setting, and its source in words."""

    value: Any
    source: str = DEFAULT


@dataclass(frozen=True, slots=True)
class _FileEntry:
    value: object
    place: str


def from_file(path: Path, settings: Iterable[Setting]) -> dict[str, SettingValue]:
    """Return the values that a file gives settings of one scope, by name. Other scopes may be in the file, too."""
    known = {each.full_name: each for each in settings}
    scope = next(iter(known.values())).scope
    found: dict[str, SettingValue] = {}
    for name, entry in _entries(path):
        of = name.partition(".")[0]
        if of not in (tables := (*SCOPES, COMMANDS_TABLE)):
            raise unknown(of, tables, f"{entry.place}: ")
        if of != scope:
            continue
        if name not in known:
            raise unknown(name, known, f"{entry.place}: ")
        found[known[name].name] = SettingValue(_value(known[name], entry.value, entry.place), entry.place)
    return found


def from_environment(environment: Mapping[str, str], settings: Iterable[Setting]) -> dict[str, SettingValue]:
    """Return the values that variables give, by name. An empty variable gives none."""
    return {
        each.name: SettingValue(_value(each, environment[each.variable], each.variable), each.variable)
        for each in settings
        if environment.get(each.variable)
    }


def strange_variables(environment: Mapping[str, str], settings: Iterable[Setting]) -> Iterator[str]:
    """Yield warnings of variables that look like settings but are not.

    No error: platforms set variables of their own by the names of services, as TXMSG_BROKER_SERVICE_HOST.
    """
    variables = {each.variable: each.scope for each in settings}
    prefixes = tuple({f"TXMSG_{scope.upper()}_" for scope in variables.values()})
    for name in sorted(environment):
        # Only near misses: a warning for each variable of a platform would hide those for misspelt settings.
        if name.startswith(prefixes) and name not in variables and (near := _near(name, variables, 0.85)):
            yield f"the variable {name} is not a setting and is ignored{near}"


def from_options(given: Mapping[str, object], settings: Iterable[Setting]) -> dict[str, SettingValue]:
    """Return the values that options gave, by name, as click passes them: checked, None if not given."""
    found = {each: given.get(parameter_of(each)) for each in settings if each.option}
    return {
        # '' among repeated ones: none of them, which is not the same as not given.
        each.name: SettingValue(tuple(filter(None, value)) if isinstance(value, tuple) else value, each.option)
        for each, value in found.items()
        if value not in (None, ())
    }


def parameter_of(setting: Setting) -> str:
    """Return the name of the command's parameter for the setting's option."""
    return setting.name.replace(".", "_")


ELSEWHERE: Final = ("topic", "group")
"""Objects whose settings are not in the catalogue."""


def unknown(name: str, known: Iterable[str], place: str = "") -> MisuseError:
    """Return the error for an unknown setting. It names the nearest one, or the command to use."""
    scope = name.partition(".")[0]
    if scope in ELSEWHERE:
        return MisuseError(
            f"{place}{shown(name)}: settings of a {scope} are changed by `txmsg {scope} alter`, and shown by "
            f"`txmsg {scope} show`"
        )
    near = _near(name, known) or (";" if "." in name else f": choose one of {', '.join(known)};")
    return MisuseError(f"{place}{shown(name)} is not a setting{near} `txmsg config explain` lists all")


def _near(name: str, known: Iterable[str], likeness: float = 0.7) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f": did you mean {near[0]}?" if near else ""


def _value(setting: Setting, given: object, place: str) -> Any:
    try:
        return setting.value_of(given)
    except MisuseError as exc:
        raise MisuseError(f"{place} gives no value for {setting.full_name}: {exc}") from exc


def read_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file of settings, and its tables. Raises MisuseError."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as exc:
        raise MisuseError(f"the settings cannot be read from {path}: {refusal_text(exc, path)}") from exc
    except ValueError as exc:  # TOMLDecodeError, UnicodeDecodeError
        raise MisuseError(f"{path} is not a file of settings in TOML: {exc}") from exc


def _entries(path: Path) -> Iterator[tuple[str, _FileEntry]]:
    """Yield the full name of each entry of a file, and its value and place."""
    text, content = read_file(path)
    lines = _lines(text)
    for name, value in _flat(content):
        place = f"{path} line {lines[name]}" if name in lines else str(path)
        yield name, _FileEntry(value, place)


def _flat(table: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value


def _lines(text: str) -> dict[str, int]:
    """Return the line of each entry, as far as regular expressions find it: tomllib does not report lines."""
    found: dict[str, int] = {}
    within = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TABLE.match(line):
            within = f"{table[1]}."
        elif entry := _ENTRY.match(line):
            found[f"{within}{entry[1]}"] = number
    return found
