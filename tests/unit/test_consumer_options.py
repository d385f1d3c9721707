"""The options of consumers: one declaration for both sources, and for both kinds of programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from txmsg.app import Txmsg
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.consumer import Consumer
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError
from txmsg.metaq import AsyncLogConsumer, LogConsumer
from txmsg.runtime.start import Start


@pytest.mark.parametrize(("kind", "core"), [(Consumer, AsyncConsumer), (LogConsumer, AsyncLogConsumer)])
def test_consumer_for_threads_has_the_parameters_of_the_asynchronous_one(
    kind: Callable[..., object], core: Callable[..., object]
) -> None:
    assert signature(kind) == signature(core)
    assert {each.name for each in fields(ConsumerOptions)} <= signature(core).parameters.keys()


WRONG: list[dict[str, Any]] = [
    {"concurrency": 0},
    {"broadcast": "a%b"},
    {"start": Start.offset(3)},
    {"start": "latest"},
]
PLACES: list[Callable[..., object]] = [
    lambda **wrong: LogConsumer("/nowhere", "g", **wrong),
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
