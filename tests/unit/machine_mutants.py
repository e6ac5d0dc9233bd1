"""Guards of the machine, taken out one at a time: each has to be missed by a test.

`python tests/unit/machine_mutants.py` prints one line of JSON per mutant. It imports what is heavy once and forks for each
mutant; the child loads the machine with the changed source, from memory, and runs the quick tests of it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGE = "toolfleet.workers.machine"
QUICK_TESTS = ("answers", "deadline", "fences", "repeats", "model", "turns", "stops", "ledger")
ROOT = Path(__file__).parents[2]
MISSED, CAUGHT, BROKEN = 0, 1, 70
HANGS_AFTER_S = 30


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in `module`; `new` takes its place."""

    module: str
    name: str
    old: str
    new: str


MUTANTS: tuple[Mutant, ...] = (
    Mutant("answers", "an answer instead of the demanded call", "control.must_call", "False"),
    Mutant(
        "answers",
        "an answer before its tools came back",
        "control.missing:\n        return Corr",
        "False:\n        return Corr",
    ),
    Mutant("answers", "an answer that misses its schema", "output.text is None", "False"),
    Mutant("answers", "only the last turn counts as progress", "back.union(state.came_back)", "back"),
    Mutant("answers", "a call that was refused counts as success", "is CallOutcome.OK", "is not None"),
    Mutant("gates", "calls outside the allowed tools run", "outside(event, call) or _w", "_w"),
    Mutant(
        "turn",
        "forbidden answers are corrected for ever",
        "corrections_max:\n        closing.end(draft, RunStatus.FAILED, refused",
        "corrections_max < 0:\n        closing.end(draft, RunStatus.FAILED, refused",
    ),
    Mutant(
        "turn",
        "a request that is too long is tightened again and again",
        "context_tokens_max is not None or tighter",
        "context_tokens_max == -1 or tighter",
    ),
    Mutant("draft", "a row may be worked on before it is due", "row.due_at > now_s", "False"),
    Mutant("draft", "a leased row may be leased", "if row.token is not None:", "if False:"),
    Mutant("turn", "a run may be submitted twice", "if state is not None:", "if False:"),
    Mutant("turn", "no limit before a model call", "limits.before_model_call(state, now_s)", "None"),
    Mutant("turn", "the reservation does not count", "draft.count(cost_usd=reserve)", "draft.count()"),
    Mutant(
        "turn", "an old token may commit a decision", "row.token == token and row.is_decide", "row.is_decide"
    ),
    Mutant(
        "turn",
        "the usage of a late reply is lost",
        'Step(state, (usage,), missed="lease lost")',
        'miss(state, "")',
    ),
    Mutant(
        "turn", "calls of a refusal run", 'event.reply.finish not in ("content_filter", "refusal")', "True"
    ),
    Mutant("turn", "empty replies without end", "used.empty_replies >= 1 or used.corrections", "-1"),
    Mutant(
        "turn",
        "a model is asked without end",
        "draft.state.model_failures < state.limits.model_attempts_max",
        "True",
    ),
    Mutant("turn", "a decision is not consumed", "draft.drop(lambda old: old.id == row.id)", "pass"),
    Mutant(
        "turn",
        "a refused model call costs",
        "draft.count(cost_usd=-state.counters.reserved_usd)\n    draft.set",
        "draft.set",
    ),
    Mutant(
        "call",
        "the lease is not the sender's already",
        "if row is not None and row.token == event.token:",
        "if False:",
    ),
    Mutant("call", "an old attempt counts", "call.open and call.attempt == attempt", "call.open"),
    # `call.open` in the same line is not listed: `row.is_exec` is a second lock on that door, so each alone is spare.
    Mutant(
        "call",
        "an old token may retry a read",
        'if not _held(row, event.token):\n        return miss(state, "lease lost")\n    assert',
        "assert",
    ),
    Mutant("call", "a read is tried without end", "elif event.attempt >= call.attempts_max:", "elif False:"),
    Mutant("call", "children may die without end", "if event.died and deaths >= DEATHS_MAX:", "if False:"),
    Mutant(
        "call",
        "a retry is due at once",
        "draft.put(row.due(now_s + event.delay_s))",
        "draft.put(row.due(now_s))",
    ),
    Mutant("call", "a message settles an effect", "if call.effect:  # only", "if False:  # only"),
    Mutant(
        "call",
        "a call is settled twice",
        "if call is None or not call.open:\n            continue",
        "if call is None:\n            continue",
    ),
    Mutant("call", "anybody may answer a call", " or call.waiting not in _ANSWERABLE:", ":"),
    Mutant("call", "an outcome stays in its queue", "queue=RESULTS_QUEUE", "queue=row.queue"),
    Mutant(
        "call",
        "a begun effect is leased",
        "if call.dispatched:\n        return miss",
        "if False:\n        return miss",
    ),
    Mutant(
        "call", "an effect is leased in a run that stops", "if call.effect and stopping(state):", "if False:"
    ),
    Mutant(
        "call",
        "an old token may finish a read",
        'if not _held(row, event.token):\n        return miss(state, "lease lost")\n    draft = Draft(state, now_s)\n    store',
        "draft = Draft(state, now_s)\n    store",
    ),
    Mutant("call", "a message finishes an effect", "not row.is_exec or call.effect:", "not row.is_exec:"),
    Mutant(
        "call",
        "a lost effect counts as failed",
        "if call.effect and call.dispatched:\n        draft.set_call",
        "if False:\n        draft.set_call",
    ),
    Mutant(
        "stop",
        "a begun effect is cancelled",
        'draft.event("run.cancelling", by=event.by, running=[c.call_id for c in state.open_calls if c.dispatched])\n    for call in state.open_calls:\n        if not call.dispatched:',
        "for call in state.open_calls:\n        if True:",
    ),
    Mutant(
        "stop",
        "what is not sent is run in a run that stops",
        "if state.status is not RunStatus.CANCELLING:",
        "if True:",
    ),
    Mutant(
        "present",
        "a gate is passed before it is due",
        "if refused is not None:",
        'if refused not in (None, "not yet due"):',
    ),
    Mutant(
        "present", "a gate is passed over a lease", "if token is None or row.token != token:", "if False:"
    ),
    Mutant(
        "present",
        "a gate settles what is out",
        'return "its effect has begun" if call.dispatched else (row, call)',
        "return (row, call)",
    ),
    Mutant("present", "an approval expires early", "asked.expires_at > now_s or", "False or"),
    Mutant("present", "a rejection nobody said", "asked.status is not ApprovalStatus.REJECTED:", "False:"),
    Mutant(
        "present", "a tier is lowered", "if TIERS.index(event.tier) <= TIERS.index(call.tier):", "if False:"
    ),
    Mutant(
        "present",
        "an old question counts for a higher tier",
        "approval=withdrawn(call, now_s),",
        "approval=call.approval,",
    ),
    Mutant("present", "a waiting call is woken by any key", " or call.waits_key != event.key:", ":"),
    Mutant(
        "draft",
        "a question outlives its call",
        "approval=withdrawn(call, self.now_s),",
        "approval=call.approval,",
    ),
    Mutant(
        "approval",
        "somebody is asked twice",
        "if call.approval is not None and call.approval.status in _DECIDED and fits(call, event.permissions):",
        "if False:",
    ),
    Mutant(
        "approval",
        "somebody is asked in a run that stops",
        "if stopping(state):\n        return miss",
        "if False:\n        return miss",
    ),
    Mutant(
        "approval",
        "a question is about other arguments",
        "if event.arguments_hash != arguments_hash(call.arguments):",
        "if False:",
    ),
    Mutant(
        "approval", "an approval of another status counts", "and asked.status is ApprovalStatus.GRANTED\n", ""
    ),
    Mutant("approval", "an approval that is over counts", "and asked.expires_at > now_s\n", ""),
    Mutant(
        "approval",
        "a grant of other permissions counts",
        "        and set(permissions) <= set(asked.permissions)\n",
        "",
    ),
    Mutant(
        "approval",
        "what needs a grant is sent without one",
        "return call.terms.asks or (call.approval is not None and bool(call.approval.permissions))",
        "return call.terms.asks",
    ),
    Mutant(
        "approval",
        "the requester grants the permission",
        "call.tier is Tier.IRREVERSIBLE or bool(event.permissions)",
        "call.tier is Tier.IRREVERSIBLE",
    ),
    Mutant("approval", "the hash check", "and asked.arguments_hash == sent_hash\n", ""),
    Mutant(
        "approval",
        "an approval of a lower tier counts",
        "and asked.tier is call.tier\n    )\n\n\ndef lapsed",
        ")\n\n\ndef lapsed",
    ),
    Mutant(
        "approval", "a standing approval covers everything", "if steps == 1 and not by_another else None", ""
    ),
    Mutant(
        "approval",
        "what has lapsed still counts",
        "asked = replace(asked, status=ApprovalStatus.WITHDRAWN)",
        "pass",
    ),
    Mutant("approval", "one confirmation is two", "enough = len(by) >= asked.steps", "enough = True"),
    Mutant(
        "approval",
        "confirmations of other arguments count",
        "(event.by,) if changed else (*asked.granted_by, event.by)",
        "(*asked.granted_by, event.by)",
    ),
    Mutant("approval", "any question is decided", "or asked.id != event.approval_id:", ":"),
    Mutant(
        "approval",
        "a decided question is decided again",
        "if asked.status is not ApprovalStatus.PENDING:\n        return f",
        "if False:\n        return f",
    ),
    Mutant("approval", "a decision after its time counts", "if asked.expires_at <= now_s:", "if False:"),
    Mutant(
        "approval",
        "a decision about other arguments counts",
        "if event.arguments_hash != asked.arguments_hash:",
        "if False:",
    ),
    Mutant(
        "approval",
        "approver and requester are one",
        "if asked.by_another and event.by == asked.requested_by:",
        "if False:",
    ),
    Mutant(
        "approval",
        "one person is two people",
        "if asked.distinct and event.by in asked.granted_by:",
        "if False:",
    ),
    Mutant(
        "approval",
        "two people are one person",
        "if asked.steps > 1 and not asked.distinct and",
        "if False and",
    ),
    Mutant(
        "effect",
        "an effect is claimed in a run that stops",
        'if stopping(state):\n        return miss(state, "run is stopping")',
        'if False:\n        return miss(state, "")',
    ),
    Mutant(
        "effect",
        "other arguments are claimed",
        "if event.arguments_hash != arguments_hash(call.arguments):",
        "if False:",
    ),
    Mutant(
        "effect",
        "an effect is claimed without approval",
        "if not granted(call, event.arguments_hash, now_s):",
        "if False:",
    ),
    Mutant("effect", "what granted a call may have lapsed", "if event.lapsed:", "if False:"),
    Mutant(
        "effect",
        "the effect key",
        "if event.holder is not None and event.holder.call_id != call.call_id:",
        "if False:",
    ),
    Mutant("effect", "a holder that is out is shared", "if holder.state in BEGUN:", "if False:"),
    Mutant("effect", "the fence by attempt", "if entry.attempt != event.attempt:", "if False:"),
    Mutant(
        "effect",
        "doubt is forgotten",
        "if entry.doubt and event.came is not EffectState.HAPPENED and not event.no_effect:",
        "if False:",
    ),
    Mutant("effect", "no quiet time", "entry.asked_at <= quiet_at:", "False:"),
    Mutant(
        "effect", "every answer is final", "if call.idempotent or call.terms.reconcile_is_final:", "if True:"
    ),
    Mutant(
        "effect",
        "an answer under an old lease",
        "if row.token != event.token:\n        return miss",
        "if False:\n        return miss",
    ),
    Mutant("effect", "an answer about an old attempt", " or entry.attempt != event.attempt:", ":"),
    Mutant(
        "effect", "a human is asked at once", "elif now_s < entry.send_by + call.timeout_s:", "elif False:"
    ),
    Mutant(
        "effect",
        "the same request without an approval",
        "may = not stopping(state) and granted(",
        "may = not stopping(state) or granted(",
    ),
    Mutant(
        "effect",
        "the same request without end",
        "if not may or call.attempt >= call.attempts_max:",
        "if not may:",
    ),
    Mutant("effect", "questions without end", "if entry.tries >= len(RECONCILE_WAITS_S):", "if False:"),
    Mutant(
        "effect",
        "attempts without end",
        "elif call.attempt >= call.attempts_max:\n        _settle",
        "elif False:\n        _settle",
    ),
    Mutant("effect", "not sent, and tried in a run that stops", "if stopping(draft.state):", "if False:"),
    Mutant(
        "effect",
        "an operator answers for what is known",
        "if found is None or found.state is not EffectState.NEEDS_HUMAN:",
        "if found is None:",
    ),
    Mutant(
        "effect",
        "who waits is not woken",
        "call.waits_key == key and row is not None",
        "False and row is not None",
    ),
    Mutant("deadline", "the time of a call begins anew", "call.deadline_at is not None or ", ""),
    Mutant("deadline", "the time runs while somebody is asked", " or _pending(call):", ":"),
    Mutant(
        "deadline", "what people take counts", " + _waited_s(call, call.deadline_at, call.deadline_at)", ""
    ),
    Mutant("deadline", "what people took before counts", "begun + _waited_s(call, begun, now_s)", "begun"),
    Mutant(
        "deadline",
        "a question from before takes of it",
        "asked.requested_at < deadline_at - call.call_timeout_s - _SAME_S",
        "False",
    ),
    Mutant("deadline", "the time is never over", "end is not None and end <= at_s", "False"),
    Mutant("deadline", "the time is over a moment late", "end <= at_s", "end < at_s"),
    Mutant(
        "call",
        "a backoff goes beyond the deadline",
        "elif deadline.over(call, now_s + event.delay_s):",
        "elif False:",
    ),
    Mutant(
        "call",
        "a lease begins no time",
        "waiting=CallWaiting.READY, deadline_at=deadline.taken(call, now_s)",
        "waiting=CallWaiting.READY",
    ),
    Mutant(
        "call",
        "the first attempt does not count",
        "taken_at = now_s if event.taken_at is None else min(event.taken_at, now_s)",
        "taken_at = now_s",
    ),
    Mutant("call", "more time than there is", "min(event.taken_at, now_s)", "event.taken_at"),
    Mutant("present", "a deadline ends a call early", "if not deadline.over(call, now_s):", "if False:"),
    Mutant(
        "present",
        "a wait goes beyond the deadline",
        "if deadline.over(call, now_s + event.delay_s):",
        "if False:",
    ),
    Mutant(
        "present",
        "a wait begins no time",
        "draft.called(call.call_id, deadline_at=deadline.taken(call, now_s))",
        "call",
    ),
    Mutant(
        "present",
        "a higher tier begins no time",
        "        deadline_at=deadline.taken(call, now_s),\n        waiting",
        "        waiting",
    ),
    Mutant("approval", "a question begins no time", "deadline_at=deadline.asked_again(call, now_s)", ""),
    Mutant(
        "effect", "an effect is claimed after its deadline", "if deadline.over(call, now_s):", "if False:"
    ),
    Mutant(
        "effect",
        "the same request after the deadline",
        "may = may and not deadline.over(call, now_s)",
        "",
    ),
    Mutant(
        "effect",
        "an attempt after the deadline",
        "elif deadline.over(call, draft.now_s + delay_s):",
        "elif False:",
    ),
    Mutant(
        "effect",
        "the time runs while an equal effect is out",
        "waits_key=key, deadline_at=None",
        "waits_key=key",
    ),
    Mutant("closing", "a turn is merged while calls are open", " and not draft.state.open_calls:", ":"),
    Mutant("closing", "a turn is merged in any phase", "draft.state.phase is TurnPhase.CALLS and", ""),
    Mutant("closing", "rows of closed calls stay", "draft.drop(lambda row: row.call_id in closed)", "pass"),
    Mutant("closing", "a cancelled run goes on", "if state.status is RunStatus.CANCELLING:", "if False:"),
    Mutant(
        "closing", "a limit in the turn does not end the run", "elif state.ending is not None:", "elif False:"
    ),
    Mutant("closing", "a denied call does not end the run", "elif denied is not None:", "elif False:"),
    Mutant("closing", "a denial told to the model ends the run", " and not c.tell_on_denied", ""),
    Mutant("closing", "no limit after a merge", "limits.after_merge(state, draft.now_s)", "None"),
    Mutant(
        "closing",
        "a tool whose effect is unknown stays",
        "if c.effect and c.outcome is",
        "if False and c.outcome is",
    ),
    Mutant(
        "closing",
        "calls that were not run count as made",
        "if call.outcome is not CallOutcome.NOT_RUN:",
        "if True:",
    ),
    Mutant("closing", "the window grows without end", "[-REPEAT_WINDOW:]", ""),
    Mutant("closing", "a terminal run keeps its rows", "        commands=(),\n", ""),
    Mutant("closing", "tool time is not active time", "draft.count(active_s=state.turn_tool_s)", "pass"),
    Mutant("closing", "model attempts are never forgotten", "        model_failures=0,\n", ""),
    Mutant(
        "gates",
        "corrections without end",
        "if invalid and state.counters.corrections >=",
        "if False and 0 >=",
    ),
    Mutant(
        "gates",
        "a correction that is not given counts",
        " and tally.ending != ReasonCode.CORRECTIONS_MAX",
        "",
    ),
    Mutant("gates", "calls of a run that ends run", "if tally.ending is not None:", "if False:"),
    Mutant(
        "gates",
        "a turn has calls without end",
        "if call.index >= state.limits.calls_per_turn_max:",
        "if False:",
    ),
    Mutant(
        "gates", "a run has calls without end", "if state.counters.tool_calls + tally.admitted >=", "if -1 >="
    ),
    Mutant(
        "gates",
        "calls of one turn are not counted",
        "state.counters.tool_calls + tally.admitted",
        "state.counters.tool_calls",
    ),
    Mutant("gates", "a withdrawn tool runs", "if call.tool not in tally.withdrawn:", "if True:"),
    Mutant("gates", "a repeatable tool is stopped", "call.repeatable or ", ""),
    Mutant("gates", "repeats without end", "if made >= REPEAT_STOPS_AT:", "if False:"),
    Mutant("gates", "nothing is withdrawn", "tally.withdrawn.add(call.tool)", "pass"),
    Mutant("gates", "an effect is reused", "None if call.effect else ", ""),
    Mutant("gates", "several at a time", "if not event.parallel and tally.admitted >= 1:", "if False:"),
    Mutant("limits", "a read is reused after an effect", "if not entry.read_only:", "if False:"),
    Mutant("limits", "a failure is reused", "return entry if entry.ok else None", "return entry"),
    Mutant(
        "limits",
        "the model is asked after the deadline",
        "<= now_s:\n        return ReasonCode.DEADLINE\n    if state.turn > l",
        "< 0:\n        return ReasonCode.DEADLINE\n    if state.turn > l",
    ),
    Mutant(
        "limits",
        "the model is asked after its seconds",
        "if used.active_s >= limits.active_seconds_max:",
        "if False:",
    ),
    Mutant("limits", "the model is asked above its cost", "if used.next_reserve_usd > 0 and", "if False and"),
    Mutant(
        "limits",
        "a turn follows the deadline",
        "<= now_s:\n        return ReasonCode.DEADLINE\n    if state.turn >=",
        "< 0:\n        return ReasonCode.DEADLINE\n    if state.turn >=",
    ),
    Mutant("limits", "turns without end", "if state.turn >= state.limits.turns_max:", "if False:"),
    Mutant(
        "limits",
        "a turn follows the seconds",
        "if state.counters.active_s >= state",
        "if False and 0 >= state",
    ),
    Mutant(
        "lease", "an old lease may expire", "row.token != event.token or row.lease_until", "row.lease_until"
    ),
    Mutant(
        "lease",
        "a live lease may expire",
        "if row.lease_until >= now_s and not event.owner_gone:",
        "if False:",
    ),
    Mutant("lease", "a dead owner keeps its lease", " and not event.owner_gone", ""),
    Mutant("lease", "deaths without end", "if row.deaths < DEATHS_MAX:", "if True:"),
    Mutant("lease", "every lost lease is a death", "(1 if event.death else 0)", "1"),
    Mutant("lease", "a lost decision stays deciding", "draft.change(status=RunStatus.QUEUED)\n", "pass\n"),
    Mutant(
        "lease",
        "an old token may hand back",
        "if row is None or row.token != event.token:",
        "if row is None:",
    ),
    Mutant("lease", "a begun effect is handed back", "if held is not None and held.dispatched:", "if False:"),
    Mutant(
        "lease",
        "a hand-back is a model attempt",
        "model_attempt=max(0, state.model_attempt - 1)",
        "model_attempt=state.model_attempt",
    ),
    Mutant(
        "stop",
        "a cancel in a turn is forgotten",
        "draft.change(status=RunStatus.CANCELLING, deadline_at=None)",
        "pass",
    ),
    Mutant(
        "stop",
        "a deadline in a turn is forgotten",
        "draft.change(ending=str(ReasonCode.DEADLINE), deadline_at=None)",
        "pass",
    ),
    Mutant("stop", "a deadline comes early", " or state.deadline_at > now_s", ""),
    Mutant("stop", "a cancel is acknowledged twice", "if state.status is RunStatus.CANCELLING:", "if False:"),
)


def source_of(mutant: Mutant) -> str:
    """The changed source; AssertionError if `old` does not stand there exactly once."""
    text = (ROOT / "workers" / "machine" / f"{mutant.module}.py").read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times"
    return text.replace(mutant.old, mutant.new)


class _Loader(SourceFileLoader):
    """Loads a module from text; reads and writes no bytecode."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        if not path.endswith(".py"):
            raise OSError("no bytecode of a mutant")
        return self._text.encode()

    def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:
        pass


class _Finder:
    """Finds the mutated module before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"{PACKAGE}.{mutant.module}"
        self._text = source_of(mutant)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        found = PathFinder.find_spec(name, path, target)
        assert found is not None and found.origin is not None
        return importlib.machinery.ModuleSpec(
            name, _Loader(name, found.origin, self._text), origin=found.origin
        )


def _tests(module: ModuleType) -> Iterator[Callable[[], None]]:
    """The tests of a module, one for each set of parameters; what hypothesis drives is left out."""
    for name, test in vars(module).items():
        if name.startswith("test_"):
            marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
            for values in itertools.product(*(mark[1] for mark in marks)):
                fixed: dict[str, object] = {}
                for (names, _), value in zip(marks, values, strict=True):
                    keys = [names] if isinstance(names, str) else names
                    fixed |= {names: value} if isinstance(names, str) else dict(zip(keys, value, strict=True))
                yield functools.partial(test, **fixed)


def _tested(mutant: Mutant | None) -> int:
    """1 if a quick test fails with the machine changed, else 0. Not through pytest: its start takes longer."""
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
    tests = [
        test
        for name in QUICK_TESTS
        for test in _tests(importlib.import_module(f"tests.unit.test_machine_{name}"))
    ]
    assert len(tests) >= 100, "the quick tests were not found"
    try:
        for test in tests:
            test()
    except Exception:  # noqa: BLE001  # whatever it is, a test noticed
        return CAUGHT
    return MISSED


def _in_a_child(mutant: Mutant | None) -> int:
    """The child's process id. It exits with what came of its tests."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        signal.alarm(HANGS_AFTER_S)  # a mutant that never ends is caught, too: the signal kills it
        code = _tested(mutant)
    finally:
        if code == BROKEN:
            traceback.print_exc()
        os._exit(code)


def main() -> None:
    """One line per mutant, as JSON: its name and what came of it; the first is the machine as it stands."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import hypothesis.stateful  # noqa: F401  # loaded once, before the forks
    import pytest  # noqa: F401

    import toolfleet.schemas.ports
    import toolfleet.workers.collector.merge  # noqa: F401

    assert not any(name.startswith(PACKAGE) for name in sys.modules), "too early"
    waiting: list[Mutant | None] = [None, *MUTANTS]
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < 2:  # the machines that test this have two cores
            mutant = waiting.pop(0)
            running[_in_a_child(mutant)] = "" if mutant is None else mutant.name
        child, status = os.wait()
        print(json.dumps([running.pop(child), os.waitstatus_to_exitcode(status)]), flush=True)


if __name__ == "__main__":
    main()
