"""`txmsg config`: the catalogue of settings, and their values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option
from txmsg.cli.output import print_facts, print_rows, say
from txmsg.cli.settings import Settings, config_option
from txmsg.settings.catalogue import Setting, settings_of
from txmsg.settings.sources import from_environment, from_file, unknown

CONFIGS: Final = {
    "broker": "txmsg.broker.config:BrokerConfig",
    "metaq": "txmsg.metaq.server.config:MetaQConfig",
    "tailer": "txmsg.binlog.config:TailerConfig",
}
"""The dataclass of each scope, imported when it is asked for: those of a log need txmsg[metaq]."""


def config_of(scope: str) -> type[Any]:
    """The dataclass of a scope. Raises MisuseError."""
    if scope not in CONFIGS:
        raise unknown(scope, CONFIGS)
    module, _, name = CONFIGS[scope].partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


@click.group()
def config() -> None:
    """Look at settings: what there is, which values a process takes, and where they come from.

    A value on the command line wins over one of the environment, which wins over one of the file, which wins over the
    default.
    """


@config.command(
    short_help="Explain settings: type, default, bounds, meaning.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config explain broker\n  txmsg config explain broker.retention_s",
)
@click.argument("names", metavar="[NAME|SCOPE]...", nargs=-1)
@json_option
def explain(*, names: tuple[str, ...], as_json: bool) -> None:
    """Explain settings: type, default, bounds, meaning, and how to give them. Without NAME: all of them."""
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
    short_help="Show the values that a process started here takes.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg config show broker --config txmsg.toml",
)
@click.argument("scope", metavar="SCOPE", type=click.Choice(list(CONFIGS)))
@click.option("--all", "with_defaults", is_flag=True, help="Also those that have their default.")
@config_option
@json_option
def show(*, scope: str, with_defaults: bool, config: Path | None, as_json: bool) -> None:
    """Show the settings that a process started here takes from file and environment, and where each is given."""
    dataclass = config_of(scope)
    catalogue = list(settings_of(dataclass, scope))
    values = {} if config is None else from_file(config, catalogue)
    settings = Settings(dataclass, scope, values | from_environment(os.environ, catalogue))
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


def _named(names: Iterable[str]) -> Iterator[Setting]:
    """The settings that these words name: a scope, a part such as broker.delivery, or one setting."""
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
        "choices": " ".join(setting.choices) or None,
        "a_change": "takes effect at once" if setting.live else "needs a restart",
        "option": setting.option or None,
        "variable": setting.variable,
        "in_the_file": f"[{setting.scope}] {setting.name}",
    }
