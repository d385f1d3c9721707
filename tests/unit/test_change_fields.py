"""The fields of a change become options of a command, with their names, kinds and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from txmsg.administration.fields import setting, settings_of
from txmsg.administration.topics import TopicChange, TopicWithSettings
from txmsg.ops.cli.options import change_options
from txmsg.wire.values import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change with a field of each kind."""

    some_number: Annotated[int, NumberRange(1, 9)] | None = setting("A number.")
    rate: float | None = setting("A rate.")
    kept_s: float | None = setting("A duration.", option="kept")
    word: Literal["here", "there"] | None = setting("A word.")
    is_shown: bool | None = setting("A switch.", option="shown")


@click.command()
@change_options(Change)
def alter(**given: Any) -> None:
    click.echo(repr(Change(**given)))


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ([], Change()),
        (["--some-number", "9"], Change(some_number=9)),
        (["--rate", "2.5"], Change(rate=2.5)),
        (["--kept", "12h"], Change(kept_s=43_200.0)),
        (["--word", "there"], Change(word="there")),
        (["--shown", "on"], Change(is_shown=True)),
        (["--shown", "off"], Change(is_shown=False)),
    ],
)
def test_each_field_becomes_an_option(arguments: list[str], change: Change) -> None:
    assert CliRunner().invoke(alter, arguments).output == f"{change!r}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--some-number", "10"], "10 is not in the range 1<=x<=9"),
        (["--rate", "-1"], "-1.0 is not in the range x>=0"),
        (["--kept", "soon"], "is not a duration"),
        (["--word", "nowhere"], "is not one of 'here', 'there'"),
        (["--shown", "yes"], "is not one of 'on', 'off'"),
    ],
)
def test_an_invalid_field_value_is_refused_with_its_option(arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(alter, arguments)
    assert found.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in found.output
    assert says in found.output


def test_options_have_the_order_of_the_fields() -> None:
    assert [each.name for each in alter.params] == list(settings_of(Change))


def test_every_changeable_topic_setting_is_shown() -> None:
    shown = {"journal": "journal_since"}
    assert {shown.get(name, name) for name in settings_of(TopicChange)} <= TopicWithSettings.__dataclass_fields__.keys()
