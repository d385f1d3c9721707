"""The life of a message, as `txmsg message trace` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from txmsg.administration.life import LifeEvent, MessageLife
from txmsg.administration.messages import LifeInGroup
from txmsg.ops.cli.output import print_facts, say

_LISTS: Final = ("groups", "mirrors", "events", "unknown")
_WORDS: Final = {
    "half": "half message stored",
    "check": "checked back",
    "parked": "parked in doubt",
    "resumed": "checks resumed",
    "commit": "committed",
    "rollback": "rolled back",
    "taken back": "recalled, or deleted with its topic",
    "delayed": "waits for its time",
    "stored": "stored in its queue",
    "retry": "to be retried",
    "dead": "dead letter",
    "lost": "entries of journals lost",
}


def life_values(life: MessageLife) -> dict[str, object]:
    """Return a life for JSON. Values that do not apply, or are unknown, are None."""
    return asdict(life)


def print_life(life: MessageLife) -> None:
    """Print facts, then events, then the state in each group and mirror, then unknown facts."""
    print_facts({name: value for name, value in life_values(life).items() if name not in _LISTS})
    for event in life.events:
        say(f" {_event(event)}")
    if life.state == "stored" and not life.groups:
        say(" no group reads its queue yet")
    for group in life.groups:
        say(f" group {group.group}: {_state(group)}")
    for mirror in life.mirrors:
        where = "not mirrored yet"
        if mirror.is_mirrored:
            tail = (
                f"txmsg metaq tail {life.topic} --log {mirror.log} --queue {life.queue} --from {life.offset} --limit 1"
            )
            where = f"mirrored; `{tail}` prints it"
        say(f" mirror {mirror.mirror}: {where}")
    for each in life.unknown:
        say(f" not known: {each}")


def _event(event: LifeEvent) -> str:
    at = event.at.isoformat(timespec="milliseconds") if event.at else "at a time that is not known"
    what = _WORDS.get(event.what, event.what)
    text = f"{at}  {what}"
    if event.attempt is not None:
        text += f", attempt {event.attempt}"
    if event.count is not None:
        text += f": {event.count}"
    if event.group is not None:
        text += f", group {event.group}"
    if event.by is not None:
        text += f", by {event.by}"
    if event.until is not None:
        text += f", due at {event.until.isoformat(timespec='milliseconds')}"
    if event.detail:
        text += ": " + event.detail.strip().replace("\n", "\n    ")
    return text


def _state(group: LifeInGroup) -> str:
    match group.state:
        case "retrying":
            at = group.next_attempt_at
            next_at = at.isoformat(timespec="seconds") if at else "when an earlier message of its ordering key is done"
            return f"retrying, failed {group.attempts} times, next attempt {next_at}"
        case "dead":
            died_at = group.died_at.isoformat(timespec="seconds") if group.died_at else None
            return f"dead since {died_at}, failed {group.attempts} times"
    return group.state
