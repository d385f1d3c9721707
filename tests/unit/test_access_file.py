"""The file of users and rules: its valid contents and the errors for mistakes."""

from __future__ import annotations

import pytest

from txmsg.errors import MisuseError, Unauthenticated
from txmsg.wire.access.file import entry_of, read_access
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.limits import UserLimits
from txmsg.wire.access.rules import Action, ResourceKind, Right
from txmsg.wire.access.tokens import new_token

TOKEN, OTHER = new_token(), new_token()
FILE = f"""
[users.shop]
tokens = ["{entry_of(TOKEN)}"]
roles = ["sender"]
limits = {{connections = 3, messages_per_s = 0.5}}
[users.ops]
certificate = "ops.example"
[rules]
"role:sender" = ["send topic:orders*"]
ops = ["administer cluster", "describe group:*"]
"""


def test_users_authenticate_by_tokens_and_certificates_with_their_rights() -> None:
    guard = Guard()
    guard.use_snapshot(read_access(FILE, 7))
    shop, ops = guard.authenticate(TOKEN.text, "", "peer"), guard.authenticate("", "ops.example", "peer")
    assert (shop.name, ops.name, guard.snapshot.version) == ("shop", "ops", 7)
    send = Right(Action.SEND, ResourceKind.TOPIC)
    assert shop.rights.decide(send, "orders.eu").allowed
    assert not ops.rights.decide(send, "orders.eu").allowed
    assert ops.rights.decide(Right(Action.ADMINISTER, ResourceKind.CLUSTER), "").allowed
    with pytest.raises(Unauthenticated):
        guard.authenticate(OTHER.text, "", "peer")
    guard.use_limits(UserLimits(requests_per_s=9, connections=9))
    assert guard.limits_of("shop") == UserLimits(connections=3, messages_per_s=0.5, requests_per_s=9)
    assert guard.limits_of("ops") == guard.limits


def test_an_empty_file_grants_no_access() -> None:
    snapshot = read_access("", 1)
    assert (snapshot.users, snapshot.credentials, snapshot.rules.all) == ({}, {}, ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[users", "it is not TOML"),
        ("[user.shop]", "'user' is unknown"),
        ("users = 3", "not a table"),
        ("[users]\nshop = 3", "not a table"),
        ("[users.'a b']", "'a b' is not a valid name"),
        ("[users.anyone]", "reserved name"),
        ("[users.shop]\npassword = 'x'", "'password' is unknown"),
        ("[users.shop]\ntokens = 'x'", "not a list of texts"),
        ("[users.shop]\nroles = [3]", "not a list of texts"),
        ("[users.shop]\ncertificate = 3", "not a text"),
        ("[users.shop]\nlimits = 3", "limits is 3, not a table"),
        ("[users.shop]\nlimits = {connections = '3'}", "connections='3' is not a number"),
        ("[users.shop]\nlimits = {connections = true}", "connections=True is not a number"),
        ("[users.shop]\nlimits = {calls = 3}", "'calls' is not a limit of users"),
        ("[users.shop]\nroles = ['a b']", "'a b' is not a valid name"),
        ("[users.a]\ncertificate = 'c'\n[users.b]\ncertificate = 'c'", "is given for two users"),
        pytest.param(
            f"[users.a]\ntokens = ['{entry_of(TOKEN)}']\n[users.b]\ntokens = ['{entry_of(TOKEN)}']",
            "is that of user a",
            id="a token of two users",  # the same in each process, but not the token
        ),
        ("[rules]\nshop = ['fly topic:x']", "'fly' is not an action"),
        ("[rules]\nshop = 'send topic:x'", "not a list of texts"),
        ("[rules]\n'a b' = ['send topic:x']", "not the name of a user"),
    ],
)
def test_a_mistake_is_named(text: str, told: str) -> None:
    with pytest.raises(MisuseError) as caught:
        read_access(text, 1)
    assert told in str(caught.value)


def test_a_plain_token_instead_of_its_hash_is_refused_and_not_quoted() -> None:
    with pytest.raises(MisuseError) as caught:
        read_access(f"[users.shop]\ntokens = ['{TOKEN.text}']", 1)
    assert "txmsg metaq token" in str(caught.value)
    assert TOKEN.text not in str(caught.value)
