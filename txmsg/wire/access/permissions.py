"""The rights that each method of each service needs: one table, from which docs/permissions.md is generated.

Knows requests by the names of their fields only, so that it stands below the protocol; a test compares both, and fails
for a method without an entry. A call is allowed if all of its needs are met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from shlex import quote as shell_quoted
from typing import Any, NamedTuple

from txmsg.errors import PermissionDenied
from txmsg.wire.access.rules import RIGHTS, Action, ResourceKind, Right, Rights, resource_text

SEND_TOPIC = Right(Action.SEND, ResourceKind.TOPIC)
SEND_GROUP = Right(Action.SEND, ResourceKind.GROUP)
RECEIVE_GROUP = Right(Action.RECEIVE, ResourceKind.GROUP)
CHECK_GROUP = Right(Action.CHECK, ResourceKind.GROUP)
DESCRIBE_TOPIC = Right(Action.DESCRIBE, ResourceKind.TOPIC)
DESCRIBE_GROUP = Right(Action.DESCRIBE, ResourceKind.GROUP)
DESCRIBE_CLUSTER = Right(Action.DESCRIBE, ResourceKind.CLUSTER)
READ_TOPIC = Right(Action.READ, ResourceKind.TOPIC)
ADMINISTER_GROUP = Right(Action.ADMINISTER, ResourceKind.GROUP)
ADMINISTER_CLUSTER = Right(Action.ADMINISTER, ResourceKind.CLUSTER)

_GROUP_TOPICS = ("%RETRY%", "%DLQ%")
"""Prefixes of topics of a log that belong to a group, whose name follows."""


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request needs on each name that it has in a field.

    path: the field, as `group`, `which.group`, `batches[].topic` or `topics[]`. "" for the cluster, and with `found`.

    when: only if this field of the request is set.

    found: on names that the method finds, and that the request does not name, or not always. Before the call, a name in
    `path` must be allowed, or if there is none, any name at all; the method leaves out or refuses what is not allowed.

    each: of several names, the method answers for each, and refuses the part that belongs to one without the right.

    optional: the call is allowed without it, and its reply lacks what needs it (on topics: bodies, headers and error
    texts, which it says; on the cluster: the state and figures of the server).
    """

    right: Right
    path: str = ""
    when: str = ""
    found: bool = False
    each: bool = False
    optional: bool = False
    names: Callable[[Any], Sequence[str]] = field(init=False, repr=False, compare=False)
    applies: Callable[[Any], object] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.right in RIGHTS, f"{self.right} is not a right"
        assert self.found or self.optional or bool(self.path) != (self.right.kind is ResourceKind.CLUSTER), (
            f"{self} names nothing"
        )
        object.__setattr__(self, "names", _reader(self.path))
        object.__setattr__(self, "applies", attrgetter(self.when) if self.when else None)


class MissingRight(NamedTuple):
    """A right that a principal does not have. name: "" for all, or any, of its kind."""

    right: Right
    name: str


def _reader(path: str) -> Callable[[Any], Sequence[str]]:
    if not path:
        return lambda _: ("",)
    repeated, is_repeated, rest = path.partition("[]")
    get = attrgetter(repeated)
    if not is_repeated:
        return lambda request: (get(request),)
    if not rest:
        return get
    get_each = attrgetter(rest.removeprefix("."))
    return lambda request: [get_each(each) for each in get(request)]


def resolved(right: Right, name: str) -> tuple[Right, str]:
    """Map a topic of a log to its owner: a group's own topics (retries, dead letters) belong to the group, a server's
    own to the cluster."""
    if right.kind is not ResourceKind.TOPIC or not name.startswith("%"):
        return right, name
    for prefix in _GROUP_TOPICS:
        if name.startswith(prefix):
            return _OF_GROUP[right.action], name.removeprefix(prefix)
    return (DESCRIBE_CLUSTER if right.action is Action.DESCRIBE else ADMINISTER_CLUSTER), ""


def allows(rights: Rights, right: Right, name: str) -> bool:
    """Return True if a principal may do this with this name."""
    return rights.decide(*resolved(right, name)).allowed


def denied(user: str, right: Right, name: str, *, file: str = "") -> PermissionDenied:
    """Return the error for a missing right. It names the command that grants it, or the entry of the file."""
    resource = resource_text(right.kind, name or "*")
    what = f"{right.action} {resource}"
    if file:
        how = f'add "{what}" to the list of {user} below [rules] in {file}, on the server'
    else:
        how = f"allow it with `txmsg acl allow {user} {right.action} {shell_quoted(resource)}`"
    error = PermissionDenied(f"user {user} may not {what}: {how}")
    error.what = what
    return error


def missing(rights: Rights, method: str, request: Any) -> MissingRight | None:
    """Return the first right that a principal lacks for this call, or None."""
    for need in PERMISSIONS[method]:
        if need.optional or (need.applies is not None and not need.applies(request)):
            continue
        names = need.names(request)
        # The method itself checks each name and refuses only that part. With one name there are no parts: the call as a
        # whole is refused here, before it costs anything.
        if need.each and len(names) > 1:
            continue
        for name in names:
            # The request names nothing yet, so any name of this kind is enough to begin. The method filters what it
            # finds by `caller.names_for`.
            if need.found and not name:
                if not rights.has(need.right):
                    return MissingRight(need.right, name)
            elif not allows(rights, need.right, name):
                return MissingRight(*resolved(need.right, name))
    return None


def missing_before(rights: Rights, method: str, names: Mapping[str, str]) -> MissingRight | None:
    """Return the first right that is missing, before there is a request: pages offer only what is allowed.

    names: those known of the request, by their kinds. Of a kind that is not there, a right on any name will do.
    """
    for need in PERMISSIONS[method]:
        if need.optional or need.applies is not None:
            continue
        name = names.get(need.right.kind, "")
        if need.right.kind in names or need.right.kind is ResourceKind.CLUSTER:
            if not allows(rights, need.right, name):
                return MissingRight(*resolved(need.right, name))
        elif not rights.has(need.right):
            return MissingRight(need.right, "")
    return None


def _topic(action: Action, path: str = "", **kwargs: Any) -> Need:
    return Need(Right(action, ResourceKind.TOPIC), path, **kwargs)


def _group(action: Action, path: str = "", **kwargs: Any) -> Need:
    return Need(Right(action, ResourceKind.GROUP), path, **kwargs)


_BY_ERROR = _topic(Action.READ, "which.topic", when="which.error")
"""A user that may not see error texts could otherwise find them by trying filters."""
_OF_GROUP = {
    Action.SEND: RECEIVE_GROUP,  # a member moves what failed there
    Action.RECEIVE: RECEIVE_GROUP,
    Action.READ: RECEIVE_GROUP,
    Action.DESCRIBE: DESCRIBE_GROUP,
    Action.ADMINISTER: ADMINISTER_GROUP,
}
_SIGNED_IN: tuple[Need, ...] = ()
_SHOWS_CLUSTER = (Need(DESCRIBE_CLUSTER),)
_CHANGES_CLUSTER = (Need(ADMINISTER_CLUSTER),)
_READS_CLUSTER = (Need(Right(Action.READ, ResourceKind.CLUSTER)),)
_MEMBER = (_group(Action.RECEIVE, found=True),)

PERMISSIONS: dict[str, tuple[Need, ...]] = {
    # What applications call.
    "Notify/Send": (_topic(Action.SEND, "batches[].topic", each=True), _group(Action.SEND, "group", when="half")),
    "Notify/EndTransactions": (_group(Action.SEND, "group"),),
    "Notify/Recall": (_topic(Action.SEND, found=True),),
    "Notify/Receive": (_topic(Action.RECEIVE, "subscriptions[].topic"), _group(Action.RECEIVE, "group")),
    "Notify/Attach": (
        _group(Action.CHECK, "hello.producer_group", when="hello.fence_ids"),
        _group(Action.CHECK, "hello.producer_group", when="hello.checks_unfenced"),
        _group(Action.RECEIVE, "hello.consumer_group", when="hello.consumer_group"),
    ),
    "Notify/Route": _SIGNED_IN,
    "Notify/Held": (_group(Action.CHECK, found=True),),
    # Administration of messages that wait for their outcomes.
    "Admin/ListHalves": (
        _group(Action.DESCRIBE, "group", found=True),
        _topic(Action.READ, optional=True),
    ),
    "Admin/ResolveHalf": (_group(Action.ADMINISTER, found=True),),
    "Admin/ResumeHalves": (_group(Action.ADMINISTER, "group", found=True),),
    "Admin/Stats": _SHOWS_CLUSTER,
    # Topics.
    "Topics/Create": (_topic(Action.ADMINISTER, "topic"),),
    "Topics/List": (_topic(Action.DESCRIBE, found=True),),
    "Topics/Show": (_topic(Action.DESCRIBE, "topic"),),
    "Topics/Settings": (_topic(Action.DESCRIBE, "topic"),),
    "Topics/Alter": (_topic(Action.ADMINISTER, "topic"),),
    "Topics/Delete": (_topic(Action.ADMINISTER, "topic"),),
    # Schemas of topics: who sends to a topic says what it sends.
    "Schemas/List": (_topic(Action.DESCRIBE, "topic", found=True),),
    "Schemas/Register": (_topic(Action.SEND, "topic"),),
    "Schemas/Delete": (_topic(Action.ADMINISTER, "topic"),),
    # Groups.
    "Groups/List": (_group(Action.DESCRIBE, found=True),),
    "Groups/Show": (_group(Action.DESCRIBE, "group"), _topic(Action.READ, optional=True)),
    "Groups/ShowSettings": (_group(Action.DESCRIBE, "group"),),
    "Groups/Alter": (_group(Action.ADMINISTER, "group"),),
    "Groups/Seek": (_group(Action.ADMINISTER, "group"),),
    "Groups/ListRetries": (_group(Action.DESCRIBE, "group"), _topic(Action.READ, optional=True)),
    "Groups/RetryNow": (_group(Action.ADMINISTER, "group"),),
    "Groups/SkipRetry": (_group(Action.ADMINISTER, "group"),),
    "Groups/Delete": (_group(Action.ADMINISTER, "group"),),
    "Groups/ShowChecks": (_group(Action.DESCRIBE, "group"),),
    "Groups/AlterChecks": (_group(Action.ADMINISTER, "group"),),
    # Dead letters. Without a group in the filter, a call is for all groups.
    "DeadLetters/List": (
        _group(Action.DESCRIBE, "which.group", found=True),
        _topic(Action.READ, optional=True),
        _BY_ERROR,
    ),
    "DeadLetters/Count": (_group(Action.DESCRIBE, "group"), _topic(Action.READ, "topic", when="error")),
    "DeadLetters/Redrive": (_group(Action.ADMINISTER, "which.group"), _BY_ERROR),
    "DeadLetters/Purge": (_group(Action.ADMINISTER, "which.group"), _BY_ERROR),
    # Single messages.
    "Messages/Find": (
        _topic(Action.DESCRIBE, "topic", found=True),
        _topic(Action.READ, optional=True),
    ),
    "Messages/Trace": (_topic(Action.DESCRIBE, "topic", found=True), _topic(Action.READ, optional=True)),
    "Messages/Erase": (_topic(Action.ADMINISTER, "topic"),),
    "Messages/BodyKeys": (_topic(Action.READ, "topic"),),
    # The brokers together.
    "Cluster/Show": _SHOWS_CLUSTER,
    "Cluster/Drain": _CHANGES_CLUSTER,
    "Cluster/Resume": _CHANGES_CLUSTER,
    "Cluster/Forget": _CHANGES_CLUSTER,
    "Cluster/Figures": _SHOWS_CLUSTER,
    "Cluster/Mirrors": _SHOWS_CLUSTER,
    "Cluster/Clients": (_group(Action.DESCRIBE, found=True),),
    "Settings/Show": _SHOWS_CLUSTER,
    "Settings/Change": _CHANGES_CLUSTER,
    "Settings/History": _SHOWS_CLUSTER,
    "Settings/Watch": _SIGNED_IN,
    "Alerts/List": _SHOWS_CLUSTER,
    "Alerts/History": _SHOWS_CLUSTER,
    "Alerts/Silence": _CHANGES_CLUSTER,
    "Alerts/Unsilence": _CHANGES_CLUSTER,
    "Alerts/Test": _CHANGES_CLUSTER,
    "Audit/List": _READS_CLUSTER,
    # Users.
    "Rules/List": _READS_CLUSTER,
    "Rules/Allow": _CHANGES_CLUSTER,
    "Rules/Deny": _CHANGES_CLUSTER,
    "Rules/Check": _READS_CLUSTER,
    "Access/WhoAmI": _SIGNED_IN,
    "Access/ListUsers": _READS_CLUSTER,
    "Access/CreateUser": _CHANGES_CLUSTER,
    "Access/AlterUser": _CHANGES_CLUSTER,
    "Access/RotateToken": _CHANGES_CLUSTER,
    "Access/CreateAccessKey": _CHANGES_CLUSTER,
    "Access/Revoke": _CHANGES_CLUSTER,
    "Access/LimitUser": _CHANGES_CLUSTER,
    "Access/DeleteUser": _CHANGES_CLUSTER,
    "Access/Watch": _READS_CLUSTER,
    # A log.
    "MetaQ/Describe": (Need(DESCRIBE_CLUSTER, optional=True),),
    "MetaQ/ListTopics": (_topic(Action.DESCRIBE, "topic", found=True),),
    "MetaQ/ShowTopic": (_topic(Action.DESCRIBE, "topic"),),
    "MetaQ/SetTopic": (_topic(Action.ADMINISTER, "topic"),),
    "MetaQ/Ranges": (_topic(Action.DESCRIBE, "queues[].topic"),),
    "MetaQ/OffsetsAt": (_topic(Action.DESCRIBE, "queues[].topic"),),
    "MetaQ/Find": (_topic(Action.READ, "topic"),),
    "MetaQ/Delayed": (_topic(Action.DESCRIBE, found=True),),
    "MetaQ/Recall": (_topic(Action.SEND, "topic"),),
    "MetaQ/Fetch": (_topic(Action.RECEIVE, "wanted[].topic"),),
    "MetaQ/Append": (_topic(Action.SEND, "head.batches[].topic"),),
    "MetaQ/Flush": (_topic(Action.SEND, found=True),),
    # Copies of a log: they have everything, its groups and notes of appends included.
    "MetaQCopies/Copy": _READS_CLUSTER,
    "MetaQCopies/State": _READS_CLUSTER,
    "MetaQCopies/Fence": _CHANGES_CLUSTER,
    # A log's groups. A session belongs to the principal that joined.
    "MetaQGroups/Join": (_topic(Action.RECEIVE, "topics[]"), _group(Action.RECEIVE, "group")),
    "MetaQGroups/View": _MEMBER,
    "MetaQGroups/Take": _MEMBER,
    "MetaQGroups/Store": _MEMBER,
    "MetaQGroups/SeekDone": _MEMBER,
    "MetaQGroups/Release": _MEMBER,
    "MetaQGroups/Leave": _MEMBER,
    "MetaQGroups/ListGroups": (_group(Action.DESCRIBE, found=True),),
    "MetaQGroups/ShowGroup": (_group(Action.DESCRIBE, "group"),),
    "MetaQGroups/SeekGroup": (_group(Action.ADMINISTER, "group"),),
    "MetaQGroups/AlterGroup": (_group(Action.ADMINISTER, "group"),),
    "MetaQGroups/DeleteGroup": (_group(Action.ADMINISTER, "group"),),
}
"""Needs by the method's name on the wire. A call without needs requires only that the client has authenticated."""
