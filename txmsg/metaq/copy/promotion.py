"""Makes a copy the leader, under a later generation of the log. Only by hand: nothing here decides that a leader is
dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.errors import (
    BrokerUnavailable,
    CopyDiverged,
    CorruptLog,
    MisuseError,
    NotLeader,
    OutcomeUnknown,
    StorageError,
)
from txmsg.metaq.copy.copier import BeginAgain, Copier
from txmsg.metaq.copy.copy_state import CopyState
from txmsg.metaq.copy.follower import take_beside
from txmsg.metaq.local import LocalLog
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.store.ahead import forget_doubt
from txmsg.metaq.store.role import copy_of, fence_of
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQCopies

_ANSWER_S: Final = 10.0
_MAY_BE_STOPPED: Final = (
    "its leader may take no appends now: promote the copy again, which goes on from here, or, to have the leader go "
    "on, stop it, run `txmsg metaq promote` on its directory, and serve it again"
)


@dataclass(frozen=True, slots=True)
class Promoted:
    """A copy that leads now. is_complete: its leader was stopped first, and the copy has everything."""

    generation: int
    position: int
    is_complete: bool


def promote(root: Path, *, leader_is_lost: bool = False) -> Promoted:
    """Stop the leader's appends, copy the rest, and make the copy the leader, from when it is served on.

    leader_is_lost: does not ask the leader. Messages that are not here are lost then, and offsets that it may have
    given out are passed over. Raises LogBusy while the copy follows, BrokerUnavailable when the leader does not answer,
    MisuseError for a log that leads.
    """
    copy = copy_of(root)
    if copy is None and fence_of(root) is None:
        raise MisuseError(
            f"the log {root} leads already: it is not a copy, and was not superseded; nothing was changed"
        )
    if copy is not None and not copy.is_begun:
        raise MisuseError(f"the copy {root} was not begun to the end: it has nothing to go on with")
    with LocalLog(root, append=True, follows=True) as log:
        is_complete = copy is not None and not leader_is_lost
        if copy is not None and is_complete:
            _take_rest(log, copy.leader, copy.id)
        if is_complete:
            # The leader was stopped and everything was copied, so no offset was given out that is missing here.
            forget_doubt(root)
        return Promoted(log.writer.promote(), log.writer.synced, is_complete)


def _take_rest(log: LocalLog, leader: str, copy_id: bytes) -> None:
    identity = log.writer.identity
    server = RemoteServer(leader)
    state = "its leader goes on"
    try:
        copier = Copier(server, log.writer, copy_id=copy_id, name="promotion")
        copier.run_once()  # errors that keep it from following come before the leader is stopped
        state = _MAY_BE_STOPPED
        # The leader refuses appends from the fence on, also after a restart. What it had accepted by then is copied, so
        # nothing is lost.
        fence = pb.FenceLogRequest(log_id=identity.log_id, generation=identity.generation + 1, copy_id=copy_id)
        end = server.ask_until_answered(
            lambda timeout_s, _: server.channel.call(MetaQCopies.fence, fence, timeout_s=timeout_s), timeout_s=_ANSWER_S
        ).end
        while copier.tail.position < end:
            copier.run_once()
        take_beside(server, log, CopyState(log), name="promotion")
    except (BrokerUnavailable, OutcomeUnknown) as exc:
        raise BrokerUnavailable(
            f"the leader {leader} gave no answer, and the copy was not promoted ({exc}): try again; if the leader is "
            f"lost, give --leader-is-lost, and what is only there is lost, too; {state}"
        ) from exc
    except BeginAgain as exc:
        raise CopyDiverged(
            f"the copy {log.root} was not promoted: it lacks what its leader {leader} has deleted ({exc}): run "
            f"`txmsg metaq follow`, which begins it again, and promote it then; {state}"
        ) from exc
    except NotLeader:  # the server that was asked does not lead: its error names the leader
        raise
    except (CopyDiverged, CorruptLog, StorageError) as exc:
        raise type(exc)(f"the copy {log.root} was not promoted: {exc}; {state}") from exc
    finally:
        server.close()
