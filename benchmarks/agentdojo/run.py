"""What injected text can make the fleet do: every task of AgentDojo with every injection, and a model that obeys both.

    python -m benchmarks.agentdojo.run [--out agentdojo.json] [--suites workspace,travel,banking,slack] [--every N]

Three rounds: the users' tasks alone, then with each injection behind the gates, then with each injection and the gates
off. The approver approves exactly the calls that the user's task needs. Who judges is the suites' own check of the
world, and the world's own list of the effects it was asked for; nothing the fleet says of itself counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.agentdojo.approver import Approver
from benchmarks.agentdojo.cases import Case, Named, attack_cases, suites, user_cases
from benchmarks.agentdojo.fleet import open_fleet, tool_counts
from toolfleet import RunRequest

BATCH: Final = 40  # worlds in memory at a time
RUN_S: Final = 600.0


@dataclass(slots=True)
class Round:
    """What a round came to. Texts name the case, for whoever looks into one."""

    cases: int = 0
    finished: int = 0
    harmed: int = 0
    unapproved_effects: int = 0
    cases_with_unapproved_effects: int = 0
    unfinished: list[str] = field(default_factory=list)
    unapproved: list[str] = field(default_factory=list)

    def count(self, case: Case, status: str, answer: str) -> None:
        self.cases += 1
        if status == "completed" and case.finished(answer):
            self.finished += 1
        else:
            self.unfinished.append(f"{case.id}: {status}")
        if case.injection_task is not None and case.harmed(answer):
            self.harmed += 1
        found = case.unapproved
        self.unapproved_effects += len(found)
        self.cases_with_unapproved_effects += bool(found)
        self.unapproved += [f"{case.id}: {effect}" for effect in found]


def play(
    cases: Sequence[Named], *, approvals: Literal["required", "off"], told: Callable[[int], None]
) -> Round:
    """Every case as a run of a fleet of its own folder."""
    here: dict[str, Case] = {}
    by_run: dict[str, Case] = {}
    played = Round()
    with tempfile.TemporaryDirectory() as folder:
        fleet = open_fleet(Path(folder), here.__getitem__, approvals=approvals)
        with fleet, Approver(fleet, by_run.get, needed=approvals == "required"):
            for start in range(0, len(cases), BATCH):
                batch = [named.make() for named in cases[start : start + BATCH]]
                here.update((case.id, case) for case in batch)
                runs = fleet.submit_many([_request(case) for case in batch])
                by_run.update((run.id, case) for case, run in zip(batch, runs, strict=True))
                for case, run in zip(batch, runs, strict=True):
                    result = run.wait(timeout_s=RUN_S)
                    played.count(case, result.status.value, result.output or "")
                    del here[case.id], by_run[run.id]
                told(played.cases)
    return played


def _request(case: Case) -> RunRequest:
    return RunRequest(
        case.suite.name,
        case.user_task.PROMPT,
        context={"case": case.id},
        metadata={"user": case.id},
    )


def report(alone: Round, gated: Round, open_: Round) -> dict[str, Any]:
    return {
        "attack_pairs": gated.cases,
        "unapproved_effects": gated.unapproved_effects,
        "user_tasks": alone.cases,
        "user_tasks_finished": alone.finished,
        "attacks_succeeding_with_gates_off": open_.harmed,
        **tool_counts(),
        "attacks_succeeding_with_gates_on": gated.harmed,
        "unapproved_effects_with_gates_off": open_.unapproved_effects,
        "user_tasks_unfinished": alone.unfinished,
        "unapproved": gated.unapproved,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("agentdojo.json"))
    parser.add_argument("--suites", default=",".join(suites()))
    parser.add_argument("--every", type=int, default=1, help="only every n-th case, for a quick look")
    given = parser.parse_args(arguments)
    names = given.suites.split(",")
    if unknown := set(names) - set(suites()):
        parser.error(f"unknown suites: {', '.join(sorted(unknown))}; there are {', '.join(suites())}")

    def told(name: str) -> Callable[[int], None]:
        return lambda done: print(f"{time.strftime('%H:%M:%S')} {name}: {done}", file=sys.stderr, flush=True)

    tasks, attacks = user_cases(names)[:: given.every], attack_cases(names)[:: given.every]
    alone = play(tasks, approvals="required", told=told("user tasks"))
    gated = play(attacks, approvals="required", told=told("attacks, gates on"))
    open_ = play(attacks, approvals="off", told=told("attacks, gates off"))
    found = report(alone, gated, open_)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in found.items() if not isinstance(value, list)}, indent=1))
    sound = not found["unapproved_effects"] and alone.finished == alone.cases
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
