"""Logging of outcomes that could not be reported, or that contradict the broker's. Decides nothing."""

from __future__ import annotations

from uuid import UUID

from txmsg.errors import OutcomeConflict, OutcomeExpired
from txmsg.message import TransactionState
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

OUTCOME_WAIT_S = 2.0
"""Seconds that a call whose local transaction is over waits to report the outcome. The report itself is repeated until
the producer's timeout; after that the check-back resolves the transaction."""

_CONTRADICTIONS = {
    (TransactionState.COMMIT, OutcomeConflict),
    (TransactionState.COMMIT, OutcomeExpired),
    (TransactionState.ROLLBACK, OutcomeConflict),
}


def is_contradiction(state: TransactionState, error: BaseException) -> bool:
    """Return True if the error means that the two databases differ for good: no check-back can repair that."""
    return (state, type(error)) in _CONTRADICTIONS


def log_untold(transaction_id: bytes, state: TransactionState, error: BaseException) -> None:
    """Log why an outcome was not accepted: a warning if the check-back resolves it, an error if an operator has to
    act."""
    uuid = UUID(bytes=transaction_id)
    match state, error:
        case TransactionState.COMMIT, OutcomeConflict():
            _log.error(
                "transaction.committed_but_rolled_back",
                "transaction %(transaction_id)s COMMITTED in its own database, but the broker has rolled its messages "
                "back: they are LOST to their consumers. Send them again as a new transaction, and find who decided: a "
                "check listener that answered ROLLBACK while the transaction ran, or a person (`txmsg half rollback`)",
                transaction_id=uuid,
            )
        case TransactionState.COMMIT, OutcomeExpired():
            _log.error(
                "transaction.committed_but_unknown",
                "transaction %(transaction_id)s COMMITTED in its own database, but the broker does not know it (any "
                "more): its outcome was decided too long ago to be remembered. Look whether its messages were "
                "delivered; if not, send them again",
                transaction_id=uuid,
            )
        case TransactionState.ROLLBACK, OutcomeConflict():
            _log.error(
                "transaction.rolled_back_but_delivered",
                "transaction %(transaction_id)s was ROLLED BACK in its own database, but the broker has delivered its "
                "messages: consumers act on what did not happen. Undo that, and find who decided: a check listener "
                "that answered COMMIT without a trace of the transaction, or a person (`txmsg half commit`)",
                transaction_id=uuid,
            )
        case _:
            _log.warning(
                "transaction.outcome_untold",
                "transaction %(transaction_id)s: %(outcome)s could not be reported (%(kind)s: %(error)s); its "
                "check-back finishes it",
                transaction_id=uuid,
                outcome=state.name,
                kind=type(error).__name__,
                error=error,
            )
