"""Defaults of options: a variable for each, and the file of settings.

`--limit` of `txmsg group list` is TXMSG_GROUP_LIST_LIMIT, or `limit` under [cli.group.list] in the file that
TXMSG_CONFIG names. A key under [cli] itself applies to every command that has such an option. Options that are
settings of servers have a catalogue of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from txmsg.errors import MisuseError
from txmsg.settings.sources import COMMANDS_TABLE, CONFIG_VARIABLE, read_file


def apply(command: click.Command, path: Sequence[str]) -> dict[str, Any]:
    """Set the variables of the options of a command and its subcommands. Returns the file's values of them, for click.

    path: the words that call it, without `txmsg`.
    """
    return _apply(command, path, _of_file())


def _apply(command: click.Command, path: Sequence[str], tables: Mapping[str, Any]) -> dict[str, Any]:
    own = tables
    for word in path:
        own = own.get(word, {})
    options = {name: option for option in command.params if (name := _name(option)) is not None}
    found: dict[str, Any] = {}
    for name, option in options.items():
        # Options with a variable of their own, such as TXMSG_BROKERS, keep it: applications read the same one.
        if option.envvar is None:
            option.envvar = "_".join(["TXMSG", *path, name]).upper().replace("-", "_")
        if (value := own.get(name, tables.get(name))) is not None and not isinstance(value, Mapping):
            found[option.name or ""] = value
    below = command.commands if isinstance(command, click.Group) else {}
    for word, each in below.items():
        found[word] = _apply(each, [*path, word], tables)
    if not isinstance(command, click.Group) and (strange := sorted(own.keys() - options.keys())):
        raise MisuseError(
            f"{os.environ[CONFIG_VARIABLE]}: [cli.{'.'.join(path)}] has {strange[0]!r}, which is not an option of "
            f"`txmsg {' '.join(path)}`: choose from {', '.join(options)}"
        )
    return found


def _name(option: click.Parameter) -> str | None:
    """Return the name of an option in the file; None for arguments, and for settings, which have tables of
    their own.
    """
    if not isinstance(option, click.Option) or not option.allow_from_autoenv or option.name == "help":
        return None
    return next((each[2:] for each in option.opts if each.startswith("--")), None)


def _of_file() -> Mapping[str, Any]:
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    tables = read_file(Path(path))[1].get(COMMANDS_TABLE, {})
    if not isinstance(tables, Mapping):
        raise MisuseError(f"{path}: {COMMANDS_TABLE} is not a table: write [{COMMANDS_TABLE}]")
    return tables
