"""The demo: recorded conversations and fan-out cases through the whole loop, checked result by result.

    submit ─► decide ─► exec ─► results ─► merge ─► decide … for every user message of every conversation

A conversation is a chain of runs, one for each thing the user says. Every run has an idempotency key made of the
conversation's id and its place, so a demo that was killed and is started again with the same folder goes on where it
was. Everything reported is read from stored rows and from the desk's own database, never from what a process
remembers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.client import Client, RunRequest, RunResult
from toolfleet.examples.airline_desk import desk
from toolfleet.examples.airline_desk.approvers import PEOPLE, PolicyApprovers
from toolfleet.examples.airline_desk.database import effects, state_diff
from toolfleet.examples.airline_desk.difference import same_json
from toolfleet.examples.airline_desk.enforcement import (
    Refusal,
    enforced_tools,
    expected_refusals,
    refusals_in,
    refused_from,
)
from toolfleet.examples.airline_desk.fanout import FanoutCase, build_fanout_cases
from toolfleet.examples.airline_desk.initial import system_policy
from toolfleet.examples.airline_desk.model_server import MODEL, ScriptedModelServer, served_in_thread
from toolfleet.examples.airline_desk.processes import APPROVERS, ENFORCE, MODEL_NAME, SEED, URL, Processes
from toolfleet.examples.airline_desk.recordings import Recording, load_recordings
from toolfleet.examples.airline_desk.scripts import END_TEXT, result_problem
from toolfleet.fleet import Fleet
from toolfleet.schemas.conversation import Item, MergeItem
from toolfleet.schemas.errors import InputError
from toolfleet.schemas.ids import CallId, RunId, idempotency_key_of
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import Lane

AGENT = "airline_desk"
CONVERSATIONS_AT_ONCE = 24
DESK_LIMITS = Limits(turns_max=20, calls_max=64)
FANOUT_LIMITS = Limits(turns_max=4)


@dataclass(slots=True)
class Told:
    """What one conversation came to; holds nothing that differs between two runs of the demo."""

    id: str
    completed: bool
    runs: list[dict[str, Any]]
    model_calls: int = 0
    tool_calls: int = 0
    merges: int = 0
    ends: int = 0
    result_mismatches: list[str] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)  # by call id
    state_matches: bool | None = None


def run_demo(
    *,
    out: Path,
    conversations: Path | None = None,
    seed: int = 0,
    database: str | None = None,
    broker: str | None = None,
    base_url: str | None = None,
    model: str | None = None,
    workers: int = 1,
    enforce: bool = False,
    approvers: bool = False,
) -> int:
    """Run the demo in folder `out`; 0 when everything was as recorded, else 1.

    With `enforce` a change to a reservation needs its details first; then the refused calls have to be those that the
    recordings alone say, and what follows one in its conversation is not compared.

    With `approvers` nothing above tier medium runs before one of two people has approved it (`approvers.py`).

    With a broker that processes share the roles are processes of their own: `workers` for decisions, as many for
    tools, a collector and a keeper.

    Writes results.jsonl (a line per conversation, input order) and summary.json. With `base_url` another model than
    the scripted one answers, and what it says is not compared. Raises InputError for a folder of another demo.
    """
    recordings = load_recordings(conversations)
    out.mkdir(parents=True, exist_ok=True)
    rules = {"enforce": True} if enforce else {}
    rules |= {"approvers": True} if approvers else {}
    _same_demo(out, recordings, seed, base_url, rules)
    console = Console()
    with ExitStack() as stack:
        url = base_url
        if url is None:
            server = ScriptedModelServer(conversations=conversations, seed=seed, enforced=enforce)
            url = stack.enter_context(served_in_thread(server))
        shared = broker is not None and not broker.startswith("memory:")
        fleet, cases = build_fleet(
            database=database or f"sqlite:///{out / 'fleet.db'}",
            broker=broker,
            url=url,
            model=model,
            seed=seed,
            signing_keys=_signing_keys(out) if shared else None,
            enforce=enforce,
            approvers=approvers,
        )
        console.print(
            f"{len(recordings)} recorded conversations and {len(cases)} fan-out cases; results in {out}\n"
            f"{_who_approves(fleet, approvers)}"
        )
        told = {URL: url, SEED: str(seed), MODEL_NAME: model or MODEL}
        told |= {ENFORCE: str(int(enforce)), APPROVERS: str(int(approvers))}
        processes = Processes(fleet, workers, told, console.print) if shared else None
        demo = Demo(fleet, recordings, cases, out, compare=base_url is None, processes=processes)
        demo.enforce, demo.approvers = enforce, approvers
        summary = asyncio.run(demo.run(console))
    console.print_json(json.dumps(summary))
    return 0 if _good(summary) else 1


def _good(summary: Mapping[str, Any]) -> bool:
    """Everything ended, was as recorded, and was allowed."""
    return (
        summary["completed"] == summary["conversations"]
        and not summary["state_mismatches"]
        and not summary["result_mismatches"]
        and summary["fanout"]["completed"] == summary["fanout"]["cases"]
        and summary.get("enforce", {}).get("as_expected", True)
        and not summary.get("approvals", {}).get("unapproved_effects", 0)
    )


def build_fleet(
    *,
    database: str | None,
    broker: str | None,
    url: str,
    model: str | None,
    seed: int,
    signing_keys: str | None = None,
    enforce: bool = False,
    approvers: bool = False,
) -> tuple[Fleet, list[FanoutCase]]:
    """The fleet of the demo: the desk with its 14 tools, and one agent for each fan-out case."""
    fleet = Fleet(
        database,
        broker=broker,
        approvals="required" if approvers else "off",
        model=OpenAIChatClient(base_url=url, api_key="not-needed"),
    )
    fleet.configure(signing_keys=signing_keys, unpriced="ok")  # recorded answers cost nothing
    fleet.agent(
        AGENT,
        model=model or MODEL,
        instructions=system_policy(),
        tools=enforced_tools() if enforce else desk.TOOLS,
        limits=DESK_LIMITS,
        lane=Lane.BATCH,
    )
    cases = build_fanout_cases(seed)
    for number, case in enumerate(cases):
        fleet.agent(
            fanout_agent(number),
            model=model or MODEL,
            tools=case.tool_functions,
            limits=FANOUT_LIMITS,
            lane=Lane.INTERACTIVE,
        )
    return fleet, cases


def fanout_agent(number: int) -> str:
    return f"fanout-{number:02d}"


class Demo:
    """Drives the conversations, some at a time, and checks what came of them."""

    def __init__(
        self,
        fleet: Fleet,
        recordings: tuple[Recording, ...],
        cases: list[FanoutCase],
        out: Path,
        *,
        compare: bool,
        processes: Processes | None = None,
    ) -> None:
        self._fleet = fleet
        self._processes = processes
        self._recordings = recordings
        self._cases = cases
        self._out = out
        self._desk_db = out / "desk.db"
        self._compare = compare
        self.enforce = False
        self.approvers = False
        self._client: Client

    async def run(self, console: Console) -> dict[str, Any]:
        try:
            if self._processes is None:
                await self._fleet.start_async()
            else:
                await self._processes.start()
            self._client = self._fleet.client()
            started = time.monotonic()
            async with self._people() as people:
                with _progress(console, len(self._recordings), len(self._cases)) as advance:
                    told = await self._conversations(lambda: advance("conversations"))
                    seconds = time.monotonic() - started
                    fanned = await self._fanout(lambda: advance("fan-out cases"))
                approvals = None if people is None else await people.summary(self._desk_db)
        finally:
            dropped = self._fleet.duplicates_dropped if self._processes is None else 0
            if self._processes is not None:
                await self._processes.stop()
            await self._fleet.stop_async()
        return self._write(told, fanned, seconds, dropped, approvals)

    @asynccontextmanager
    async def _people(self) -> AsyncIterator[PolicyApprovers | None]:
        """Whoever decides while the demo runs; where they cannot, the demo ends and says why."""
        if not self.approvers:
            yield None
            return
        people = PolicyApprovers(self._client, self._recordings)
        async with asyncio.TaskGroup() as group:
            deciding = group.create_task(people.decide())
            try:
                yield people
            finally:
                deciding.cancel()

    async def _conversations(self, advance: Callable[[], None]) -> list[Told]:
        places = asyncio.Semaphore(CONVERSATIONS_AT_ONCE)

        async def one(recording: Recording) -> Told:
            async with places:
                told = await self._tell(recording)
            advance()
            return told

        return list(await asyncio.gather(*(one(recording) for recording in self._recordings)))

    async def _tell(self, recording: Recording) -> Told:
        told = Told(recording.id, completed=True, runs=[])
        previous: str | None = None
        recorded = [str(m["content"]) for m in recording.messages if m["role"] == "tool"]
        first_refused = refused_from(recording) if self.enforce else None
        if first_refused is not None:
            recorded = recorded[:first_refused]
        items: list[Item] = []
        for run in recording.runs:
            (run_id,) = await self._client.submit(
                [
                    RunRequest(
                        AGENT,
                        run.user_text,
                        previous_run_id=previous,
                        idempotency_key=f"demo/{recording.id}/{run.index}",
                        context={"conversation": recording.id, "desk_db": str(self._desk_db.resolve())},
                        metadata={"user": recording.id},
                    )
                ]
            )
            result = await self._client.wait(run_id)
            items += [one.item for one in await self._client.store.items(RunId(run_id))]
            await self._note(told, run_id, result, recorded, open_end=first_refused is not None)
            if not result.ok:
                break
            previous = run_id
        told.refused = refusals_in(recording.id, items)
        if self._compare:
            if told.completed and recorded:
                told.result_mismatches.append(f"{len(recorded)} recorded result(s) never came")
            if first_refused is None:  # what was refused did not happen, so the state is not the recorded one
                found = await asyncio.to_thread(state_diff, self._desk_db, recording.id)
                told.state_matches = same_json(found, list(recording.expected_diff))
        return told

    async def _note(
        self, told: Told, run_id: str, result: RunResult, recorded: list[str], *, open_end: bool
    ) -> None:
        """Book one run, and take from `recorded` the results it had, comparing them; with `open_end` more may come."""
        merges = await self._merges(run_id)
        calls = []
        for merge in merges:
            for one in merge.results:
                calls.append({"outcome": one.outcome.value, "result": json.loads(one.content)})
                if self._compare and (recorded or not open_end):
                    wanted = recorded.pop(0) if recorded else None
                    problem = (
                        "not recorded" if wanted is None else result_problem({"content": one.content}, wanted)
                    )
                    if problem is not None:
                        told.result_mismatches.append(
                            f"run {len(told.runs)}, call {len(calls) - 1}: {problem}"
                        )
        told.runs.append(
            {"status": result.status.value, "reason": result.reason, "output": result.output, "calls": calls}
        )
        told.completed = told.completed and result.ok
        told.model_calls += result.model_calls
        told.tool_calls += result.tool_calls
        told.merges += len(merges)
        told.ends += result.output == END_TEXT

    async def _merges(self, run_id: str) -> list[MergeItem]:
        return [
            s.item for s in await self._client.store.items(RunId(run_id)) if isinstance(s.item, MergeItem)
        ]

    async def _fanout(
        self, advance: Callable[[], None]
    ) -> list[tuple[FanoutCase, RunResult, list[MergeItem]]]:
        requests = [
            RunRequest(fanout_agent(number), case.user_text, idempotency_key=f"demo/fanout/{case.id}")
            for number, case in enumerate(self._cases)
        ]
        run_ids = await self._client.submit(requests)

        async def one(case: FanoutCase, run_id: str) -> tuple[FanoutCase, RunResult, list[MergeItem]]:
            result = await self._client.wait(run_id)
            advance()
            return case, result, await self._merges(run_id)

        return list(await asyncio.gather(*map(one, self._cases, run_ids)))

    def _write(
        self,
        told: list[Told],
        fanned: list[tuple[FanoutCase, RunResult, list[MergeItem]]],
        seconds: float,
        dropped: int,
        approvals: dict[str, Any] | None,
    ) -> dict[str, Any]:
        histogram = Counter(str(len(merge.results)) for _, _, merges in fanned for merge in merges)
        summary = {
            "conversations": len(told),
            "completed": sum(one.completed for one in told),
            "runs": sum(len(one.runs) for one in told),
            "model_calls": sum(one.model_calls for one in told),
            "ends_of_recording": sum(one.ends for one in told),
            "tool_calls": sum(one.tool_calls for one in told),
            "merges": sum(one.merges for one in told),
            "result_mismatches": sum(len(one.result_mismatches) for one in told),
            "state_mismatches": sum(one.state_matches is False for one in told),
            "duplicates_dropped": dropped,
            "seconds": round(seconds, 3),
            "fanout": {
                "cases": len(fanned),
                "completed": sum(_fanned_out(case, result, merges) for case, result, merges in fanned),
                "calls": sum(result.tool_calls for _, result, _ in fanned),
                "merges": sum(len(merges) for _, _, merges in fanned),
                "histogram": dict(sorted(histogram.items(), key=lambda entry: int(entry[0]))),
            },
        }
        if self.enforce:
            summary["enforce"] = self._enforced(told)
        if approvals is not None:
            summary["approvals"] = approvals
        lines = (json.dumps(asdict(one), ensure_ascii=False) for one in told)
        _replace(self._out / "results.jsonl", "".join(f"{line}\n" for line in lines))
        _replace(self._out / "summary.json", json.dumps(summary, indent=1) + "\n")
        return summary

    def _enforced(self, told: list[Told]) -> dict[str, Any]:
        """What was refused, against what the recordings say; and that nothing refused was done all the same."""
        refused = {id_: one for conversation in told for id_, one in conversation.refused.items()}
        expected = [one for recording in self._recordings for one in expected_refusals(recording)]
        done = {effect.idempotency_key for effect in effects(self._desk_db)}
        happened = [id_ for id_ in refused if idempotency_key_of(CallId(id_)) in done]
        return {
            "refused": len(refused),
            "expected": len(expected),
            "refused_and_done": len(happened),
            "as_expected": sorted(refused.values()) == sorted(expected) and not happened,
            "calls": [asdict(one) for one in sorted(refused.values())],
        }


def _fanned_out(case: FanoutCase, result: RunResult, merges: list[MergeItem]) -> bool:
    """Completed, with one merge that holds every expected result in call order."""
    if not result.ok or len(merges) != 1:
        return False
    data = [json.loads(one.content).get("data") for one in merges[0].results]
    return same_json(data, list(case.results_expected))


def _signing_keys(out: Path) -> str:
    """The key of this demo's messages, made once and kept in its folder for this user alone."""
    path = out / "signing.key"
    if not path.exists():
        fresh = path.with_name(path.name + ".new")
        fresh.touch(mode=0o600)
        fresh.write_text(f"demo:{secrets.token_hex(32)}")
        fresh.replace(path)
    return path.read_text()


def _who_approves(fleet: Fleet, approvers: bool) -> str:
    gated = sorted(n for n, tool in fleet.registry.tools.items() if tool.spec.tier in PEOPLE)
    if not approvers:
        return (
            f'approvals="off": tools above tier medium ({", ".join(gated)}) run here without asking anybody'
        )
    people = ", ".join(f"{name} ({tier.value})" for tier, name in PEOPLE.items())
    return f"asked before {', '.join(gated)}: {people}"


def _same_demo(
    out: Path,
    recordings: tuple[Recording, ...],
    seed: int,
    base_url: str | None,
    rules: Mapping[str, bool],
) -> None:
    """A folder holds one demo: its input is written down before anything runs, and compared at every start."""
    digest = hashlib.sha256(json.dumps([[r.id, list(r.messages)] for r in recordings]).encode()).hexdigest()
    mine = {"conversations_sha256": digest, "seed": seed, "scripted": base_url is None}
    mine |= rules
    path = out / "demo.json"
    if not path.exists():
        _replace(path, json.dumps(mine, indent=1) + "\n")
        return
    try:
        theirs: Mapping[str, Any] = json.loads(path.read_text())
    except ValueError:
        theirs = {}
    if theirs != mine:
        raise InputError(
            f"{out} holds a demo of other conversations, another seed, another model or other rules",
            hint="Give another --out, or remove that folder.",
        )


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


@contextmanager
def _progress(console: Console, conversations: int, cases: int) -> Iterator[Callable[[str], None]]:
    """Bars on a terminal; elsewhere a line for each tenth."""
    totals = {"conversations": conversations, "fan-out cases": cases}
    if not console.is_terminal:
        yield _Tenths(console, totals).advance
        return
    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {name: progress.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name: progress.advance(tasks[name])


class _Tenths:
    """Says how far the demo is, a line for each tenth."""

    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        self._console = console
        self._totals = totals
        self._done = dict.fromkeys(totals, 0)

    def advance(self, name: str) -> None:
        self._done[name] += 1
        done, total = self._done[name], self._totals[name]
        if done * 10 // total > (done - 1) * 10 // total:
            self._console.print(f"{name}: {done} of {total}")
