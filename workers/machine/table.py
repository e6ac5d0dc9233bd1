"""The transition tables as data: what may follow each event in each status of a run, phase of a turn, state of a call.

A test drives `reduce` through thousands of states and compares; `docs/state_machine.md` is generated from here.
An event that is not listed in a row is always a miss there: somebody was faster, or the step is gone. `MISS`
beside others means that it depends on the row: gone, not due, leased by another, or of another attempt.
"""

from __future__ import annotations

from typing import Final

from toolfleet.schemas.outcomes import RunStatus, TurnPhase
from toolfleet.workers.machine.call_table import MISS, Next

TABLE: Final[dict[RunStatus, dict[str, Next]]] = {
    RunStatus.QUEUED: {
        "DecisionLeased": (
            RunStatus.DECIDING,
            RunStatus.LIMIT_REACHED,
            MISS,
        ),
        "CancelRequested": (RunStatus.CANCELLED,),
        "DeadlineReached": (
            RunStatus.LIMIT_REACHED,
            MISS,
        ),
    },
    RunStatus.DECIDING: {
        "ModelReplied": (
            RunStatus.COMPLETED,
            RunStatus.FAILED,
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
        ),
        "ModelFailed": (
            RunStatus.FAILED,
            RunStatus.QUEUED,
        ),
        "RunUnworkable": (RunStatus.FAILED,),
        "DecisionDeferred": (RunStatus.QUEUED,),
        "LeaseExpired": (
            RunStatus.FAILED,
            RunStatus.QUEUED,
            MISS,
        ),
        "HandedBack": (
            RunStatus.QUEUED,
            MISS,
        ),
        "CancelRequested": (RunStatus.CANCELLED,),
        "DeadlineReached": (
            RunStatus.LIMIT_REACHED,
            MISS,
        ),
    },
    RunStatus.WAITING: {
        "CallLeased": (
            RunStatus.WAITING,
            MISS,
        ),
        "CallFinished": (
            RunStatus.WAITING,
            MISS,
        ),
        "CallRetry": (
            RunStatus.DENIED,
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
            MISS,
        ),
        "CallRefused": (
            RunStatus.WAITING,
            MISS,
        ),
        "CallDeferred": (
            RunStatus.WAITING,
            MISS,
        ),
        "CallWoken": (
            RunStatus.WAITING,
            MISS,
        ),
        "TierRaised": (
            RunStatus.WAITING,
            MISS,
        ),
        "ApprovalRequested": (
            RunStatus.WAITING,
            MISS,
        ),
        "ApprovalDecided": (
            RunStatus.WAITING,
            MISS,
        ),
        "EffectClaimed": (
            RunStatus.WAITING,
            MISS,
        ),
        "EffectEnded": (
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
            MISS,
        ),
        "ReconcileStarted": (
            RunStatus.WAITING,
            MISS,
        ),
        "ReconcileAnswered": (
            RunStatus.WAITING,
            MISS,
        ),
        "EffectResolved": (
            RunStatus.WAITING,
            MISS,
        ),
        "CallsSettled": (
            RunStatus.DENIED,
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
            MISS,
        ),
        "CallAnswered": (
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
            MISS,
        ),
        "LeaseExpired": (
            RunStatus.DENIED,
            RunStatus.LIMIT_REACHED,
            RunStatus.QUEUED,
            RunStatus.WAITING,
            MISS,
        ),
        "HandedBack": (
            RunStatus.WAITING,
            MISS,
        ),
        "CancelRequested": (
            RunStatus.CANCELLED,
            RunStatus.CANCELLING,
        ),
        "DeadlineReached": (
            RunStatus.LIMIT_REACHED,
            RunStatus.WAITING,
            MISS,
        ),
    },
    RunStatus.CANCELLING: {
        "EffectClaimed": (
            RunStatus.CANCELLING,
            MISS,
        ),
        "EffectEnded": (
            RunStatus.CANCELLED,
            RunStatus.CANCELLING,
            MISS,
        ),
        "ReconcileStarted": (
            RunStatus.CANCELLING,
            MISS,
        ),
        "ReconcileAnswered": (
            RunStatus.CANCELLING,
            MISS,
        ),
        "EffectResolved": (
            RunStatus.CANCELLING,
            MISS,
        ),
        "CallsSettled": (
            RunStatus.CANCELLED,
            RunStatus.CANCELLING,
            MISS,
        ),
        "CallAnswered": (
            RunStatus.CANCELLED,
            RunStatus.CANCELLING,
            MISS,
        ),
        "LeaseExpired": (
            RunStatus.CANCELLED,
            RunStatus.CANCELLING,
            MISS,
        ),
    },
    RunStatus.COMPLETED: {},
    RunStatus.NEEDS_INPUT: {},
    RunStatus.LIMIT_REACHED: {
        "EffectEnded": (
            RunStatus.LIMIT_REACHED,
            MISS,
        ),
        "EffectResolved": (
            RunStatus.LIMIT_REACHED,
            MISS,
        ),
    },
    RunStatus.DENIED: {
        "EffectEnded": (
            RunStatus.DENIED,
            MISS,
        ),
    },
    RunStatus.FAILED: {},
    RunStatus.CANCELLED: {
        "EffectEnded": (
            RunStatus.CANCELLED,
            MISS,
        ),
        "EffectResolved": (
            RunStatus.CANCELLED,
            MISS,
        ),
    },
}

# `deciding` after `calls` is the next turn.
PHASE_TABLE: Final[dict[TurnPhase, dict[str, Next]]] = {
    TurnPhase.DECIDING: {
        "DecisionLeased": (
            TurnPhase.DECIDING,
            TurnPhase.ENDED,
            MISS,
        ),
        "ModelReplied": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.ENDED,
            TurnPhase.MERGED,
            MISS,
        ),
        "ModelFailed": (
            TurnPhase.DECIDING,
            TurnPhase.ENDED,
            MISS,
        ),
        "RunUnworkable": (
            TurnPhase.ENDED,
            MISS,
        ),
        "DecisionDeferred": (
            TurnPhase.DECIDING,
            MISS,
        ),
        "LeaseExpired": (
            TurnPhase.DECIDING,
            TurnPhase.ENDED,
            MISS,
        ),
        "HandedBack": (
            TurnPhase.DECIDING,
            MISS,
        ),
        "CancelRequested": (TurnPhase.ENDED,),
        "DeadlineReached": (
            TurnPhase.ENDED,
            MISS,
        ),
    },
    TurnPhase.CALLS: {
        "CallLeased": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CallFinished": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CallRetry": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.MERGED,
            MISS,
        ),
        "CallRefused": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CallDeferred": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CallWoken": (
            TurnPhase.CALLS,
            MISS,
        ),
        "TierRaised": (
            TurnPhase.CALLS,
            MISS,
        ),
        "ApprovalRequested": (
            TurnPhase.CALLS,
            MISS,
        ),
        "ApprovalDecided": (
            TurnPhase.CALLS,
            MISS,
        ),
        "EffectClaimed": (
            TurnPhase.CALLS,
            MISS,
        ),
        "EffectEnded": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.MERGED,
            MISS,
        ),
        "ReconcileStarted": (
            TurnPhase.CALLS,
            MISS,
        ),
        "ReconcileAnswered": (
            TurnPhase.CALLS,
            MISS,
        ),
        "EffectResolved": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CallsSettled": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.MERGED,
            MISS,
        ),
        "CallAnswered": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.MERGED,
            MISS,
        ),
        "LeaseExpired": (
            TurnPhase.CALLS,
            TurnPhase.DECIDING,
            TurnPhase.MERGED,
            MISS,
        ),
        "HandedBack": (
            TurnPhase.CALLS,
            MISS,
        ),
        "CancelRequested": (
            TurnPhase.CALLS,
            TurnPhase.MERGED,
            MISS,
        ),
        "DeadlineReached": (
            TurnPhase.CALLS,
            TurnPhase.MERGED,
            MISS,
        ),
    },
    TurnPhase.MERGED: {
        "EffectEnded": (
            TurnPhase.MERGED,
            MISS,
        ),
        "EffectResolved": (
            TurnPhase.MERGED,
            MISS,
        ),
    },
    TurnPhase.ENDED: {},
}

EVENTS: Final[dict[str, str]] = {
    "DecisionLeased": "T2: a decision worker takes the lease and the cost is reserved; a limit may end the run here",
    "ModelReplied": "T3, T4: the reply is stored; its calls go out, or the run ends",
    "ModelFailed": "T5: no reply; asked again later, or given up",
    "RunUnworkable": "T4: nobody can work on this decision",
    "DecisionDeferred": "T5: the model was not asked, for its quota is used up or it is paused; due again later",
    "CallLeased": "T6, T10: an executor takes the lease of a call; an effect counts as begun from here on",
    "CallFinished": "T7, T11: an executor stores an outcome; a late one of an effect is kept as evidence",
    "CallRetry": "T8: a read-only call is due again, or has used up its attempts or its deaths",
    "CallRefused": "T9: a gate of the present says no",
    "CallDeferred": "T9: a gate of the present says not now",
    "CallWoken": "T9: the key a call waits for is free, or its holder has come to something",
    "TierRaised": "T9: with these arguments the call is of a higher tier",
    "ApprovalRequested": "T9: somebody is asked, or a standing approval covers the call",
    "ApprovalDecided": "T19: somebody approves, changes or rejects; refused decisions are written down",
    "EffectClaimed": "T10: an executor takes lease and key; the effect counts as begun; or it shares what the holder "
    "came to, or waits for it",
    "EffectEnded": "T11: what the sender says; a late word is kept as evidence",
    "ReconcileStarted": "T13: somebody asks what became of an effect, or sends it again under its key",
    "ReconcileAnswered": "T14: the answer, believed or not yet",
    "EffectResolved": "T26: an operator answers for an effect nobody could tell of",
    "CallsSettled": "T12: the collector counts outcomes and merges a turn that has them all",
    "CallAnswered": "T22: a client or a callback answers a call that waits for it",
    "LeaseExpired": "T16, T17: a holder went silent; at the third death the step is given up",
    "HandedBack": "T24: a stopping worker gives the step back",
    "CancelRequested": "T21: nothing new begins; effects that have begun run to their outcome",
    "DeadlineReached": "T23: as a cancel, ending in limit_reached",
}

STATUSES: Final[dict[RunStatus, str]] = {
    RunStatus.QUEUED: "A decision is outstanding and nobody holds it.",
    RunStatus.DECIDING: "A decision worker holds the decision and asks the model.",
    RunStatus.WAITING: "Calls of the current turn are out; some may be done.",
    RunStatus.CANCELLING: "Cancelled, and an effect that had begun has no outcome yet. It ends `cancelled`.",
    RunStatus.COMPLETED: "The model answered. Terminal.",
    RunStatus.NEEDS_INPUT: "The agent asks the user back. Terminal; no event leads here yet.",
    RunStatus.LIMIT_REACHED: "A limit stopped it; the partial results are kept. Terminal.",
    RunStatus.DENIED: "A call was not permitted; its turn was completed first. Terminal.",
    RunStatus.FAILED: "It could not go on, for the reason in `reason`. Terminal.",
    RunStatus.CANCELLED: "Somebody cancelled it. Terminal.",
}
