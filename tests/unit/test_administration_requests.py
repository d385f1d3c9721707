"""Requests of the administration to brokers, with numbers as people typed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from txmsg.administration.groups import CheckChange, GroupChange, Seek
from txmsg.administration.notify import NotifyAdministration
from txmsg.administration.settings import ChangeSetting, SettingsService
from txmsg.errors import MisuseError
from txmsg.wire.method import checked
from txmsg.wire.start import Start


class CallReached(Exception):
    """Raised when the call gets as far as the broker."""


def _ask(method: object, request: object) -> NoReturn:
    checked(request)
    raise CallReached


_NOTIFY = NotifyAdministration(_ask)
_CALLS: dict[str, tuple[str, Callable[[int], object]]] = {
    "retries": ("retries_max", lambda number: _NOTIFY.alter_group(GroupChange(group="g", retries_max=number))),
    "checks": ("checks_max", lambda number: _NOTIFY.alter_checks(CheckChange(group="g", checks_max=number))),
    "seek": ("queue", lambda number: _NOTIFY.seek(Seek(group="g", topic="t", to=Start.latest(), queue=number))),
    "place": ("to.value", lambda number: _NOTIFY.seek(Seek(group="g", topic="t", to=Start("offset", number)))),
    "version": ("version", lambda number: _ask(SettingsService.change, ChangeSetting(name="s", version=number))),
    "as_of": ("as_of", lambda number: _ask(SettingsService.change, ChangeSetting(name="s", as_of=number))),
}


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("number", [-1, 10**30, 2.5])
def test_a_number_out_of_range_is_refused_with_its_field_name(call: str, number: Any) -> None:
    name, ask = _CALLS[call]
    with pytest.raises(MisuseError, match=f"{name}=.* must be a whole number from 0 to "):
        ask(number)
    with pytest.raises(CallReached):
        ask(7)


@pytest.mark.parametrize("concurrency", [0, 5])
def test_concurrency_of_a_group_is_refused_with_advice_to_set_it_on_its_consumers(concurrency: int) -> None:
    with pytest.raises(MisuseError, match=r"config set client\.concurrency@g N`.*config unset client\.concurrency@g`"):
        _NOTIFY.alter_group(GroupChange(group="g", concurrency=concurrency))
