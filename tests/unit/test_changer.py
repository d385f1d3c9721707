"""The name recorded for the author of a change."""

from __future__ import annotations

import os
import pwd
import socket

import pytest

from txmsg.administration.ask import changer


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all variables that name the user of this process."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_change_is_attributed_to_user_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert changer() == f"ada@{socket.gethostname()}"


def test_a_user_without_a_name_is_named_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", is_unknown)
    assert changer() == f"uid {os.getuid()}@{socket.gethostname()}"


def test_a_long_name_is_cut_to_the_limit_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "a" * 300)
    assert changer() == "a" * 200
