"""The transition table of a call; those of runs and turns are in `table.py`, where the words are explained."""

from __future__ import annotations

from typing import Final

from toolfleet.schemas.outcomes import CallWaiting

MISS: Final = "miss"
BEGUN: Final = "begun"  # an open call whose effect may have begun; what became of it may be asked for
CLOSED: Final = "closed"  # a call that has its outcome
Next = tuple[str, ...]

# Of the call that the event names, or of each call where it concerns the whole turn. What a call waits for beside these
# belongs to features that are not built; of those, only the answers of T22 are there. `begun` holds what reconciles.
CALL_TABLE: Final[dict[str, dict[str, Next]]] = {
    CallWaiting.READY: {
        "CallLeased": (
            CallWaiting.READY,
            MISS,
        ),
        "CallFinished": (
            CLOSED,
            MISS,
        ),
        "CallRetry": (
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallRefused": (
            CLOSED,
            MISS,
        ),
        "CallDeferred": (
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallWoken": (
            CallWaiting.READY,
            MISS,
        ),
        "TierRaised": (
            CallWaiting.READY,
            MISS,
        ),
        "ApprovalRequested": (
            CallWaiting.AWAITING_APPROVAL,
            CallWaiting.READY,
            MISS,
        ),
        "EffectClaimed": (
            BEGUN,
            CLOSED,
            CallWaiting.READY,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "EffectEnded": (
            CallWaiting.READY,
            MISS,
        ),
        "CallsSettled": (
            CLOSED,
            CallWaiting.READY,
            MISS,
        ),
        "LeaseExpired": (
            CLOSED,
            CallWaiting.READY,
            MISS,
        ),
        "HandedBack": (
            CallWaiting.READY,
            MISS,
        ),
        "CancelRequested": (CLOSED,),
        "DeadlineReached": (
            CLOSED,
            MISS,
        ),
    },
    CallWaiting.RETRY_DUE: {
        "CallLeased": (
            CallWaiting.READY,
            MISS,
        ),
        "CallFinished": (
            CLOSED,
            MISS,
        ),
        "CallRetry": (
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallRefused": (
            CLOSED,
            MISS,
        ),
        "CallDeferred": (
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallWoken": (
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "TierRaised": (
            CallWaiting.READY,
            MISS,
        ),
        "ApprovalRequested": (
            CallWaiting.AWAITING_APPROVAL,
            CallWaiting.READY,
            MISS,
        ),
        "ApprovalDecided": (
            CallWaiting.READY,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "EffectClaimed": (
            BEGUN,
            CLOSED,
            CallWaiting.READY,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "EffectEnded": (
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallsSettled": (
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CancelRequested": (CLOSED,),
        "DeadlineReached": (
            CLOSED,
            MISS,
        ),
    },
    CallWaiting.AWAITING_APPROVAL: {
        "CallLeased": (
            CallWaiting.READY,
            MISS,
        ),
        "CallFinished": (
            CLOSED,
            MISS,
        ),
        "CallRetry": (
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallRefused": (
            CLOSED,
            MISS,
        ),
        "CallDeferred": (
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "TierRaised": (
            CallWaiting.READY,
            MISS,
        ),
        "ApprovalDecided": (
            CallWaiting.AWAITING_APPROVAL,
            CallWaiting.READY,
            MISS,
        ),
        "CallsSettled": (
            CallWaiting.AWAITING_APPROVAL,
            CLOSED,
            MISS,
        ),
        "CancelRequested": (CLOSED,),
        "DeadlineReached": (
            CLOSED,
            MISS,
        ),
    },
    BEGUN: {
        "EffectClaimed": (
            BEGUN,
            MISS,
        ),
        "EffectEnded": (
            BEGUN,
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "ReconcileStarted": (
            BEGUN,
            CLOSED,
            MISS,
        ),
        "ReconcileAnswered": (
            BEGUN,
            CLOSED,
            CallWaiting.RETRY_DUE,
            MISS,
        ),
        "CallsSettled": (
            BEGUN,
            MISS,
        ),
        "CallAnswered": (
            CLOSED,
            MISS,
        ),
        "LeaseExpired": (
            BEGUN,
            CLOSED,
            MISS,
        ),
        "CancelRequested": (
            BEGUN,
            MISS,
        ),
        "DeadlineReached": (
            BEGUN,
            MISS,
        ),
    },
    CLOSED: {
        "EffectEnded": (
            CLOSED,
            MISS,
        ),
        "EffectResolved": (
            CLOSED,
            MISS,
        ),
        "CallsSettled": (
            CLOSED,
            MISS,
        ),
        "CancelRequested": (
            CLOSED,
            MISS,
        ),
        "DeadlineReached": (
            CLOSED,
            MISS,
        ),
    },
}
