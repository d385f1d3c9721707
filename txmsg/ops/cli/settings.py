"""Settings of a server's command: options of its catalogue, and the merged values of all sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from txmsg.errors import MisuseError, TxmsgError
from txmsg.ops.cli.options import Decorator
from txmsg.runtime.logs import EventLog, log_to_stderr
from txmsg.settings.catalogue import REQUIRED, Setting, SettingKind, made_of, settings_of
from txmsg.settings.live import GivenSettings
from txmsg.settings.sources import (
    CONFIG_VARIABLE,
    SettingValue,
    from_environment,
    from_file,
    from_options,
    parameter_of,
    strange_variables,
)

_log = EventLog(__name__)

T = TypeVar("T")

_METAVARS = {
    SettingKind.DURATION: "TIME",
    SettingKind.SIZE: "SIZE",
    SettingKind.COUNT: "NUMBER",
    SettingKind.NUMBER: "NUMBER",
    SettingKind.PATH: "DIR",
    SettingKind.FILE: "FILE",
}

config_option: Decorator = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=CONFIG_VARIABLE,
    show_envvar=True,
    help="File of settings, in TOML.",
)


class _OfSetting(click.ParamType):  # type: ignore[type-arg]
    """The values of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.name = "integer range" if setting.kind is SettingKind.COUNT else setting.kind.name.lower()
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._setting.value_of(value)
        except MisuseError as exc:
            self.fail(f"{exc}.", param, ctx)


def settings_options(config: type, scope: str) -> Decorator:
    """Add --config, and an option for each setting that has one; the command gets None for options that are
    not given.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed([setting for setting in settings_of(config, scope) if setting.option]):
            command = _option(each)(command)
        return config_option(command)

    return decorate


def _option(setting: Setting) -> Decorator:
    own_variable = setting.variable != f"TXMSG_{setting.scope}_{setting.name}".upper()
    note = f"  [env var: {setting.variable}]" if own_variable else ""
    default = f"  [default: {setting.shown_default()}]" if setting.default_shown or setting.default != "" else ""
    common: dict[str, Any] = {"default": None, "help": f"{setting.meaning}{note}{default}", "allow_from_autoenv": False}
    if setting.kind is SettingKind.FLAG:
        return click.option(f"{setting.option}/--no-{setting.option[2:]}", parameter_of(setting), **common)
    if setting.kind is SettingKind.CHOICE:
        return click.option(setting.option, parameter_of(setting), type=click.Choice(setting.choices), **common)
    if setting.kind is SettingKind.TEXTS:
        return click.option(setting.option, parameter_of(setting), metavar="PATTERN", multiple=True, **common)
    metavar = setting.metavar or _METAVARS.get(setting.kind, "TEXT")
    kinds = {
        SettingKind.TEXT: click.STRING,
        SettingKind.PATH: click.Path(path_type=Path, file_okay=False, readable=False),
        SettingKind.FILE: click.Path(path_type=Path),
    }
    kind = kinds.get(setting.kind) or _OfSetting(setting)
    return click.option(setting.option, parameter_of(setting), metavar=metavar, type=kind, **common)


class ProcessSettings(Generic[T]):
    """The settings of a process, with where each value comes from."""

    def __init__(self, config: type[T], scope: str, values: Mapping[str, SettingValue]) -> None:
        self._config = config
        self.catalogue: Sequence[Setting] = list(settings_of(config, scope))
        self.given = values

    def __getitem__(self, name: str) -> Any:
        return self.all()[name].value

    def all(self) -> dict[str, SettingValue]:
        """Return every setting by name."""
        return {each.name: self.given.get(each.name, SettingValue(each.default)) for each in self.catalogue}

    def sources(self) -> dict[str, str]:
        """Return the source of each setting that differs from its default."""
        return {name: each.source for name, each in self.given.items()}

    def make(self, **others: object) -> T:
        """Return the dataclass of these settings. others: values that the process itself provides. Raises
        MisuseError.
        """
        for each in self.catalogue:
            if each.default is REQUIRED and each.name not in self.given and each.name not in others:
                raise click.UsageError(
                    f"{each.full_name} is missing: give {each.option}, the variable {each.variable}, or "
                    f"{each.name} under [{each.scope}] in a file of settings"
                )
        return made_of(self._config, {name: each.value for name, each in self.given.items()} | others)


def read_settings(config: type[T], scope: str, file: Path | None, options: Mapping[str, object]) -> ProcessSettings[T]:
    """Read all sources but the run-time store, and configure logging by them."""
    settings = _read(config, scope, file, options)
    log_to_stderr(settings["log_level"], settings["log_format"])
    # After logging is configured: a misspelt variable is otherwise silently without effect.
    for warning in strange_variables(os.environ, settings.catalogue):
        _log.warning("settings.strange_variable", "%(warning)s", warning=warning)
    return settings


def take_again(given: GivenSettings[T], scope: str, file: Path | None, options: Mapping[str, object]) -> None:
    """Read the sources again in a running process. An error in them is logged, and the old values stay."""
    try:
        settings = _read(type(given.config), scope, file, options)
        given.take_live(settings.make(), scope, settings.sources())
    except (TxmsgError, click.UsageError) as exc:
        _log.error("settings.unreadable", "the settings cannot be applied, the former ones stay: %(error)s", error=exc)


def _read(config: type[T], scope: str, file: Path | None, options: Mapping[str, object]) -> ProcessSettings[T]:
    catalogue = list(settings_of(config, scope))
    values = {} if file is None else from_file(file, catalogue)
    values |= from_environment(os.environ, catalogue) | from_options(options, catalogue)
    return ProcessSettings(config, scope, values)
