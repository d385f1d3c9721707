"""Options of consumers: one declaration for both sources and for sync and async programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from txmsg.client.app import Txmsg
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.consumer import Consumer
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError
from txmsg.metaq import AsyncPullConsumer, PullConsumer
from txmsg.wire.start import Start

OF_HANDLERS = {"concurrency", "close_timeout_s", "encryption"}


@pytest.mark.parametrize(
    ("kind", "core", "without"), [(Consumer, AsyncConsumer, set()), (PullConsumer, AsyncPullConsumer, OF_HANDLERS)]
)
def test_constructors_have_the_declared_options_with_their_defaults(
    kind: Callable[..., object], core: Callable[..., object], without: set[str]
) -> None:
    assert signature(kind) == signature(core)
    declared = {each.name: each.default for each in fields(ConsumerOptions) if each.name not in without}
    parameters = signature(core).parameters
    assert {name: parameters[name].default for name in declared} == declared
    assert not without & parameters.keys()


WRONG: list[dict[str, Any]] = [
    {"concurrency": 0},
    {"broadcast": "a%b"},
    {"start": Start.offset(3)},
    {"start": "latest"},
]
PLACES: list[Callable[..., object]] = [
    lambda **wrong: Consumer(group="g", **wrong),
    lambda **wrong: Txmsg(group="g").subscribe("t", **wrong),
    lambda **wrong: Txmsg(group="g").subscribe("t", source="log", **wrong),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", PLACES)
def test_options_are_checked_in_one_place_for_both_sources(place: Callable[..., object], wrong: dict[str, Any]) -> None:
    with pytest.raises(MisuseError) as declared:
        ConsumerOptions(**wrong)
    with pytest.raises(MisuseError, match=re.escape(str(declared.value))):
        place(**wrong)


@pytest.mark.parametrize("wrong", [each for each in WRONG if "concurrency" not in each])
def test_pull_consumers_check_options_in_the_same_place(wrong: dict[str, Any]) -> None:
    with pytest.raises(MisuseError) as declared:
        ConsumerOptions(**wrong)
    with pytest.raises(MisuseError, match=re.escape(str(declared.value))):
        PullConsumer("/nowhere", "g", **wrong)
