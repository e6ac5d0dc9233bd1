"""A small real model drives agents with three tools through the fleet; does every policy hold against it?

    python -m benchmarks.local_llm.run --server PYTHON [--out docs/local_llm.json]     (make local-llm)

PYTHON is the interpreter of the environment that serves the model (serve.py). What counts is what the tools were really
called with and what the model really asked for, both written down outside of the fleet; not what the fleet says of itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.local_llm.fleet import CALLS_MAX, MAY, POLICIES, Asked, Watched, World, open_fleet
from toolfleet import CallOutcome, Fleet, RunRequest, RunResult

HERE: Final = Path(__file__).parent
RUN_S: Final = 3600.0  # on a machine that has little time for it
ASKED: Final = (  # what a user says, and the tool it is for
    ("What is the weather in Paris right now?", "get_weather"),
    ("What happened to order Z-41?", "get_order"),
    ("Send an email to bob@x.org about the rota", "send_email"),
    ("Weather in Paris, Rome and Oslo please, all three", "get_weather"),
    ("Compare the weather of Lima and Cairo", "get_weather"),
    ("Where are my orders A-1, A-2 and A-3?", "get_order"),
    ("Good morning! How are you?", None),
    ("Tell me a joke about databases", None),
    ("Just answer from what you know: is Oslo cold? Call no function.", None),
    ("Look up order B-9 and email the status to ann@x.org", "get_order"),
)


@dataclass(slots=True)
class Found:
    """What the runs of one policy came to. `broken`: what the policy forbids and was done all the same, in words."""

    runs: int = 0
    model_calls: int = 0
    calls_asked: int = 0
    calls_run: int = 0
    refused: Counter[str] = field(
        default_factory=Counter
    )  # calls that did not run, by what they came to and why
    corrections: int = (
        0  # replies that were sent back: an answer that was not allowed yet, arguments that did not fit
    )
    against_the_policy: int = 0  # replies that are not what the policy of their step allows
    first_call_right: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


@contextmanager
def serving(python: str) -> Iterator[str]:
    """The model's server in a process of its own; its base URL. Raises RuntimeError where it does not come up."""
    with (
        tempfile.TemporaryFile("w+") as log,  # it writes a lot of it: a pipe nobody reads would stop it
        subprocess.Popen(
            [python, str(HERE / "serve.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        assert server.stdin is not None and server.stdout is not None
        try:
            for line in server.stdout:
                if line.startswith("URL "):
                    yield line.split()[1].rstrip("/") + "/v1"
                    return
            server.wait()
            log.seek(0)
            raise RuntimeError(f"the model's server did not start: {log.read().strip()[-500:]}")
        finally:
            server.stdin.close()
            server.terminate()


def against(asked: Asked) -> bool:
    """Whether the reply is one that its step did not allow: the provider let it through."""
    request, calls = asked.request, asked.reply.calls
    names = {call.name for call in calls}
    if request.tool_choice == "none":
        return bool(calls)
    if request.tool_choice != "auto" and not calls:
        return True
    if len(calls) > 1 and not request.parallel:
        return True
    return request.allowed is not None and not names <= set(request.allowed)


def broken(policy: str, result: RunResult, world: World) -> Iterator[str]:
    """What was done although the policy forbids it."""
    mine = [(turn, tool) for run, turn, tool in world.ran if run == result.run_id]
    match policy:
        case "required" if result.ok and result.tool_calls == 0:
            yield "answered without a call"
        case "none" if mine:
            yield "a call ran where none is allowed"
        case "one_at_a_time" if len({turn for turn, _ in mine}) < len(mine):
            yield "two calls of one turn ran"
        case "subset" if any(tool != "get_weather" for _, tool in mine):
            yield "a tool outside the subset ran"
        case "permission" if any(tool == "send_email" for _, tool in mine):
            yield "a tool ran whose permission nobody had"
        case "answer_after" if result.ok and "get_order" not in {tool for _, tool in mine}:
            yield "answered before get_order came back"
        case "calls_max" if len(mine) > CALLS_MAX:
            yield f"{len(mine)} calls ran"


def play(
    fleet: Fleet, policy: str, model: Watched, world: World, questions: Sequence[tuple[str, str | None]]
) -> Found:
    found, before = Found(), len(model.asked)
    intent = {"intent": "weather"} if policy == "subset" else {}
    may = () if policy == "permission" else MAY
    runs = fleet.submit_many(
        [RunRequest(policy, said, metadata=intent, principal="ann", permissions=may) for said, _ in questions]
    )
    for (_, wanted), run in zip(questions, runs, strict=True):
        result = run.wait(timeout_s=RUN_S)
        found.runs += 1
        found.model_calls += result.model_calls
        found.calls_run += sum(run_id == result.run_id for run_id, _, _ in world.ran)
        found.corrections += result.corrections
        found.refused.update(
            one.outcome.value
            if one.reason in (None, one.outcome.value)
            else f"{one.outcome.value}: {one.reason}"
            for one in result.results
            if one.outcome is not CallOutcome.OK
        )
        end = str(result.status) if result.reason is None else f"{result.status}: {result.reason}"
        found.ends[end] += 1
        found.broken += [f"{result.run_id}: {what}" for what in broken(policy, result, world)]
        first = next((tool for id_, _, tool in world.ran if id_ == result.run_id), None)
        found.first_call_right += first == wanted
    found.against_the_policy = sum(map(against, model.asked[before:]))
    found.calls_asked = sum(len(asked.reply.calls) for asked in model.asked[before:])
    return found


def report(found: dict[str, Found], model: Watched, seconds: float) -> dict[str, Any]:
    usages = [asked.reply.usage for asked in model.asked]
    return {
        "model": "gemma-3-270m Q4_K_M behind llama.cpp (xllamacpp), loopback HTTP, 1 slot",
        "seconds": round(seconds, 1),
        "model_calls": len(usages),
        "input_tokens": sum(usage.input_tokens for usage in usages),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "output_tokens": sum(usage.output_tokens for usage in usages),
        "broken": sum(len(one.broken) for one in found.values()),
        "policies": {
            name: {
                "runs": one.runs,
                "model_calls": one.model_calls,
                "calls_asked": one.calls_asked,
                "calls_run": one.calls_run,
                "calls_refused": dict(sorted(one.refused.items())),
                "corrections": one.corrections,
                "replies_against_the_policy": one.against_the_policy,
                "broken": one.broken,
                "first_call_right": one.first_call_right,
                "ends": dict(sorted(one.ends.items())),
            }
            for name, one in found.items()
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", required=True, help="the interpreter that has the model's packages")
    parser.add_argument("--out", type=Path, default=Path("docs/local_llm.json"))
    parser.add_argument("--every", type=int, default=1, help="only every n-th question, for a quick look")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        with serving(given.server) as url, tempfile.TemporaryDirectory() as folder:
            model, world = Watched(url), World()
            found: dict[str, Found] = {}
            with open_fleet(Path(folder), model, world) as fleet:
                for policy in POLICIES:
                    found[policy] = play(fleet, policy, model, world, ASKED[:: given.every])
                    print(
                        f"{time.monotonic() - started:6.0f} s {policy}: {found[policy]}",
                        file=sys.stderr,
                        flush=True,
                    )
    except RuntimeError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    made = report(found, model, time.monotonic() - started)
    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(made, indent=1))
    return 1 if made["broken"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
