"""The users of the secured demo have exactly the rights that their processes need."""

from __future__ import annotations

from typing import Any

import pytest

from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.secure_stage import RIGHTS, SERVICE, TOPIC
from txmsg.wire.access.permissions import PERMISSIONS, missing
from txmsg.wire.access.rules import Rights, parse_rule
from txmsg.wire.v1 import metaq_pb2, txmsg_pb2

_HALF = txmsg_pb2.SendRequest(group=SERVICE, half=True, batches=[txmsg_pb2.MessageColumns(topic=TOPIC)])
_ATTACH = txmsg_pb2.ClientFrame(hello=txmsg_pb2.Hello(producer_group=SERVICE, fence_ids=[bytes(16)]))
_NOTHING: Any = None
"""For calls whose permission names no request field."""
CALLS: dict[str, dict[str, Any]] = {
    SERVICE: {
        "Notify/Send": _HALF,
        "Notify/EndTransactions": txmsg_pb2.EndTransactionsRequest(group=SERVICE),
        "Notify/Attach": _ATTACH,
    },
    **{
        group: {
            "Notify/Receive": txmsg_pb2.ReceiveRequest(
                group=group, subscriptions=[txmsg_pb2.Subscription(topic=TOPIC, tags="*")]
            )
        }
        for group in GROUPS
    },
    "metaq": {"Access/Watch": _NOTHING},
    "tailer": {
        "MetaQ/Append": metaq_pb2.AppendRequest(
            head=metaq_pb2.AppendHead(batches=[metaq_pb2.AppendBatch(topic=TOPIC)])
        ),
        "MetaQ/Fetch": metaq_pb2.FetchRequest(wanted=[metaq_pb2.QueueOffsets(topic=TOPIC)]),
    },
    "reader": {"MetaQ/Fetch": metaq_pb2.FetchRequest(wanted=[metaq_pb2.QueueOffsets(topic=TOPIC)])},
    "operator": {"Cluster/Show": _NOTHING, "Topics/List": _NOTHING, "Groups/List": _NOTHING},
    "supervisor": {"Admin/Stats": _NOTHING},
}
"""The calls of each user's process."""


def allowed(user: str, rights: tuple[str, ...]) -> bool:
    given = Rights(parse_rule(user, *right.split(" ")) for right in rights)
    return all(missing(given, method, request) is None for method, request in CALLS[user].items())


@pytest.mark.parametrize("user", RIGHTS)
def test_every_right_of_every_process_is_needed(user: str) -> None:
    assert CALLS[user].keys() <= PERMISSIONS.keys()
    rights = tuple(RIGHTS[user])
    assert allowed(user, rights)
    for right in rights:
        assert not allowed(user, tuple(each for each in rights if each != right)), right
