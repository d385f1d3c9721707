"""`txmsg config`: the catalogue of settings, and their values. Asks the service Settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from txmsg.administration.ask import Nothing, changer
from txmsg.administration.settings import ChangeSetting, SettingChange, SettingHistoryQuery
from txmsg.administration.settings import SettingsService as Service
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import Decorator, json_option, table_options, yes_option
from txmsg.ops.cli.output import json_text, print_facts, print_rows, say
from txmsg.ops.cli.settings import ProcessSettings, config_option
from txmsg.settings.catalogue import Setting, settings_of
from txmsg.settings.sources import DEFAULT, ELSEWHERE, SCOPES, from_environment, from_file, unknown

CONFIGS: Final = {
    "broker": "txmsg.broker.config:BrokerConfig",
    "metaq": "txmsg.metaq.server.server_config:MetaQConfig",
    "tailer": "txmsg.binlog.config:TailerConfig",
    "rocketmq": "txmsg.rocketmq.config:GatewayConfig",
    "client": "txmsg.settings.clients:ClientConfig",
}
"""The dataclass of each scope, imported on demand: those of a log need txmsg[metaq]."""


def config_of(scope: str) -> type[Any]:
    """Return the dataclass of a scope. Raises MisuseError."""
    if scope not in CONFIGS:
        raise unknown(scope, CONFIGS)
    module, _, name = CONFIGS[scope].partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


@click.group()
def config() -> None:
    """Show and change settings, their values, and where each value comes from.

    A value set at run time overrides the command line, which overrides the environment, which overrides the file, which
    overrides the default.
    """


@config.command(
    short_help="Explain settings: type, default, bounds, meaning.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config explain broker\n  txmsg config explain broker.retention_s",
)
@click.argument("names", metavar="[NAME|SCOPE]...", nargs=-1)
@json_option
def explain(*, names: tuple[str, ...], as_json: bool) -> None:
    """Explain settings: type, default, bounds, meaning, and how to set them. Without NAME: all of them."""
    found = list(_named(names or tuple(CONFIGS)))
    if as_json:
        click.echo(json.dumps({each.full_name: _facts(each) for each in found}))
    elif len(found) == 1:
        print_facts({"setting": found[0].full_name} | _facts(found[0]))
    else:
        print_rows(
            {"setting": each.full_name, "default": each.shown_default(), "meaning": each.meaning} for each in found
        )


@config.command(
    short_help="Check file and environment, and show the values that a process started here takes.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config check broker --config txmsg.toml",
)
@click.argument("scope", metavar="SCOPE", type=click.Choice(SCOPES))
@click.option("--all", "with_defaults", is_flag=True, help="Also settings with their default value.")
@config_option
@json_option
def check(*, scope: str, with_defaults: bool, config: Path | None, as_json: bool) -> None:
    """Check the settings that a process started here takes from file and environment, and show their sources."""
    dataclass = config_of(scope)
    catalogue = list(settings_of(dataclass, scope))
    values = {} if config is None else from_file(config, catalogue)
    settings = ProcessSettings(dataclass, scope, values | from_environment(os.environ, catalogue))
    by_name = {each.name: each for each in settings.catalogue}
    chosen = {name: value for name, value in settings.all().items() if with_defaults or name in settings.given}
    if as_json:
        click.echo(
            json.dumps(
                {
                    by_name[name].full_name: {"value": by_name[name].in_words(each.value), "source": each.source}
                    for name, each in chosen.items()
                }
            )
        )
    elif chosen:
        print_rows(
            {"setting": by_name[name].full_name, "value": by_name[name].in_words(each.value), "from": each.source}
            for name, each in chosen.items()
        )
    else:
        say(f"all settings of {scope} have their defaults: --all shows them")


@config.command(
    short_help="Show the settings of a running broker, and what is set at run time.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config show\n  txmsg config show broker.retention_s app --all",
)
@click.argument("names", metavar="[NAME|SCOPE]...", nargs=-1)
@click.option("--all", "with_defaults", is_flag=True, help="Also settings with their default value.")
@broker_option
@json_option
def show(*, names: tuple[str, ...], with_defaults: bool, broker: str, as_json: bool) -> None:
    """Show the settings that a running broker uses, with their sources, and all that are set at run time."""
    for name in names:
        if name.partition(".")[0] in ELSEWHERE:
            raise unknown(name, ())
    reply = ask_broker(broker, Service.show, Nothing())
    used = [
        each
        for each in reply.used
        if _is_named(each.name, names) and (with_defaults or names or each.source != DEFAULT)
    ]
    stored = [each for each in reply.stored if _is_named(each.name, names)]
    if as_json:
        values = {
            "broker": reply.broker,
            "version": reply.version,
            "used": {each.name: {"value": each.value, "source": each.source} for each in used},
            "at_run_time": [asdict(each) for each in stored],
        }
        click.echo(json_text(values))
        return
    if used:
        say(f"broker {reply.broker} uses:")
        print_rows({"setting": each.name, "value": each.value, "from": each.source} for each in used)
    if stored:
        say("set at run time:")
        print_rows(map(asdict, stored))
    if not used and not stored:
        say("nothing of this is set: all have their defaults")


_version_option: Decorator = click.option(
    "--version",
    type=click.IntRange(0),
    help="Refuse unless the setting is at this version; 0: never set before.",
)


@config.command(
    "set",
    short_help="Set a setting for all brokers, while they run.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config set broker.retention_s 14d\n"
    "  txmsg config set broker.log_level@broker-2 debug\n  txmsg config set app.activity.lottery on --version 3\n\n"
    "NAME@BROKER is for one broker only, client.NAME@GROUP for one group. Names that begin with app. are for "
    "applications.",
)
@click.argument("name")
@click.argument("value")
@yes_option
@_version_option
@broker_option
@json_option
def set_(*, name: str, value: str, yes: bool, version: int | None, broker: str, as_json: bool) -> None:
    """Set a setting at run time. It overrides options, environment and file, and survives restarts.

    Asks before a change that may delete messages, such as of the retention.
    """
    if not yes:
        _confirm(f"Set {name} to {value}?", name, broker, err=as_json)
    change = ChangeSetting(name=name, value=value, version=version, changed_by=changer())
    _print_change(ask_broker(broker, Service.change, change), as_json=as_json)


@config.command(
    short_help="Remove a setting that was set at run time.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config unset broker.retention_s",
)
@click.argument("name")
@yes_option
@_version_option
@broker_option
@json_option
def unset(*, name: str, yes: bool, version: int | None, broker: str, as_json: bool) -> None:
    """Remove a setting that was set at run time: option, environment, file or default apply again.

    Asks before a change that may delete messages, such as of the retention.
    """
    if not yes:
        _confirm(f"Unset {name}?", name, broker, err=as_json)
    change = ChangeSetting(name=name, version=version, changed_by=changer())
    _print_change(ask_broker(broker, Service.change, change), as_json=as_json)


@config.command(
    short_help="Show who changed a setting, when, and to what.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config history broker.retention_s\n  txmsg config history",
)
@click.argument("name", default="")
@broker_option
@json_option
@table_options
def history(*, name: str, broker: str, as_json: bool) -> None:
    """Show the changes of a setting at run time, the newest first; without NAME, of all. The last 100 are kept."""
    found = ask_broker(broker, Service.history, SettingHistoryQuery(name=name))
    changes = [asdict(each) for each in found.changes]
    if as_json:
        click.echo(json_text({"name": name, "changes": changes}))
    elif changes:
        print_rows(changes)
    else:
        say(f"{name or 'nothing'} was {'never' if name else 'ever'} set at run time")


@config.command(
    short_help="Set a setting to what it was at an earlier version.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config rollback broker.retention_s 7",
)
@click.argument("name")
@click.argument("as_of", metavar="VERSION", type=click.IntRange(0))
@yes_option
@_version_option
@broker_option
@json_option
def rollback(*, name: str, as_of: int, yes: bool, version: int | None, broker: str, as_json: bool) -> None:
    """Set a setting to its value at a version that `txmsg config history` lists. This is a new change."""
    if not yes:
        _confirm(f"Set {name} to what it was at version {as_of}?", name, broker, err=as_json, always=True)
    change = ChangeSetting(name=name, as_of=as_of, version=version, changed_by=changer())
    _print_change(ask_broker(broker, Service.change, change), as_json=as_json)


def _confirm(question: str, name: str, broker: str, *, err: bool, always: bool = False) -> None:
    """Ask if a change may delete something for good, and say what, or `always`. Aborts without a yes."""
    plain = name.partition("@")[0]
    scope = plain.partition(".")[0]
    catalogue = settings_of(config_of(scope), scope) if scope in CONFIGS else ()
    loses = next((each.loses for each in catalogue if each.full_name == plain), "")
    if loses:
        used = ask_broker(broker, Service.show, Nothing()).used
        now = next((each.value for each in used if each.name == plain), "not known")
        click.echo(f"{plain} is {now} now. {loses}", err=err)
    if loses or always:
        click.confirm(question, abort=True, err=err)


def _print_change(setting: SettingChange, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(asdict(setting)))
    else:
        value = "is unset" if setting.value is None else f"is {setting.value}"
        say(f"{setting.name} {value}, since version {setting.version}")


def _is_named(name: str, names: tuple[str, ...]) -> bool:
    plain = name.partition("@")[0]
    return not names or any(f"{plain}.".startswith(f"{each}.") or name == each for each in names)


def _named(names: Iterable[str]) -> Iterator[Setting]:
    """Yield the settings that these words name: a scope, a part such as broker.delivery, or one setting."""
    for name in names:
        scope = name.partition(".")[0]
        catalogue = list(settings_of(config_of(scope), scope))
        found = [each for each in catalogue if f"{each.full_name}.".startswith(f"{name}.")]
        if not found:
            raise unknown(name, [each.full_name for each in catalogue])
        yield from found


def _facts(setting: Setting) -> dict[str, object]:
    return {
        "meaning": setting.meaning,
        "kind": setting.kind.value,
        "default": setting.shown_default(),
        "bounds": setting.bounds() or None,
        "may_delete": setting.loses or None,
        "choices": " ".join(setting.choices) or None,
        "a_change": _change_of(setting),
        "option": setting.option or None,
        "variable": setting.variable if setting.scope in SCOPES else None,
        "in_the_file": f"[{setting.scope}] {setting.name}" if setting.scope in SCOPES else None,
    }


def _change_of(setting: Setting) -> str:
    if not setting.live:
        return "needs a restart"
    ways = [
        *(["in the file, with SIGHUP"] if setting.scope in SCOPES else []),
        *(["by `txmsg config set`"] if setting.scope in {"broker", "client"} else []),
    ]
    return f"takes effect at once: {', or '.join(ways)}"
