"""Actions, which change something: a GET shows the effect and asks, a POST does it.

The dialog is the same for all: a title, sentences that say what will happen, optional fields, and a button. When a
field changes, the dialog is requested again with the values so far, so its sentences may depend on them (a dry run).
Until it arrives the button does nothing, so that nothing is confirmed that was not shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from txmsg.errors import PermissionDenied
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.operations import ConsoleOperation
from txmsg.ops.console.page_context import PageContext
from txmsg.wire.access.permissions import denied, missing_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An input of the dialog. kind: text, number, checkbox, select (of `choices`), area or hidden."""

    name: str
    label: str = ""
    value: str = ""
    kind: str = "text"
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    """Values with the text that is shown for each."""
    is_required: bool = False
    affects: bool = False
    """True if the effect depends on it: the dialog is then requested again when it changes. A click that changes it by
    leaving it does nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The dialog's contents."""

    title: str
    says: Sequence[str]
    """Sentences about the effect, with figures."""
    button: str
    """The verb on the button."""
    is_danger: bool = False
    """True if it cannot be undone."""
    fields: Sequence[Field] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleAction:
    """A change in one database."""

    path: str
    """The path below the database, with parameters: /brokers/{broker}/drain."""
    method: str
    """The method on the wire that it calls: visitors without a right to it are not offered the action. "": no broker's
    method."""
    confirm: Callable[[PageContext], Awaitable[Confirmation]]
    """Returns the dialog. `look.values`: the fields so far. Raises the errors of errors.py, which the dialog then
    shows."""
    perform: Callable[[PageContext], Awaitable[str | ConsoleOperation]]
    """Does it, and returns a sentence about it, or about its start if it takes long. `look.values`: the fields."""

    def refusal(self, who: UserIdentity | None, names: Mapping[str, str]) -> PermissionDenied | None:
        """Return the reason why a visitor may not do this; None if it may. names: of topic and group, as far as they
        are known.
        """
        lacking = None if who is None or not self.method else missing_before(who.rights, self.method, names)
        return None if lacking is None or who is None else denied(who.name, *lacking)


def deletion(look: PageContext, section: str, name: str, says: Sequence[str]) -> Confirmation:
    """Return the dialog before a topic or a group is deleted. Its texts are SECTION.delete_title, .delete
    and .force.
    """
    return Confirmation(
        title=look.t(f"{section}.delete_title", name=name),
        says=says,
        button=look.t(f"{section}.delete"),
        is_danger=True,
        fields=[Field(name="force", label=look.t(f"{section}.force"), kind="checkbox")],
    )


def final_act(look: PageContext, act: str, hidden: str, **values: str) -> Confirmation:
    """Return the dialog before a final action on one message. Its texts are ACT_title, _says, _says_rest, ACT.

    hidden: names of values that the dialog sends back.
    """
    return Confirmation(
        title=look.t(f"{act}_title"),
        says=[look.t(f"{act}_says", **values), look.t(f"{act}_says_rest")],
        button=look.t(act),
        is_danger=True,
        fields=[Field(name=hidden, kind="hidden", value=values[hidden])],
    )
