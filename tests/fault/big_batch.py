"""Nights of a fleet of real processes: a small batch nobody disturbs, then a large one whose processes are killed.

All that is done is done by the commands a user has: `up`, `batch submit`, `watch`, `status`, `download`; the batch of the
other tenant comes and goes through Python. Some lines ask for an act in the world outside; its ledger is the judge of
what happened, and the two answer files are of what was said.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fault.big_batch_app import AGENT
from tests.fault.big_batch_rules import LARGE, SMALL, Sizes
from tests.fault.memory_peaks import CHILD, Peaks
from tests.fault.stack import ROOT, Process, Stack, wait_until
from toolfleet.batching.front import Kind

APP: Final = "tests.fault.big_batch_app:fleet"
UP: Final = "up"
WATCH: Final = "batch watch"
STATUS: Final = "batch status"
FLEETS: Final = {  # whom a kill may meet
    "embedded": (UP, CHILD, WATCH),
    "streams": (UP, "worker decide", "worker exec", "worker collect", "worker keep", CHILD, WATCH),
}
ACTS: Final = 0.1  # share of the lines that ask for an act
WORDS_MAX: Final = 60  # of a line
OPEN: Final = ("pending", "running")
COUNTED: Final = ("completed", "failed", "expired", "cancelled")  # what never falls
START_S: Final = 180.0  # on a machine that is busy
PATIENCE_S: Final = 600.0  # without any progress
QUARTER: Final = 0.25
EARLY: Final = (0.02, 0.2)  # the part of a large batch in which processes are killed
LATE: Final = (0.97, 0.99)
GATE: Final = "gate"  # while this file is there, the last lines of the large batch are not answered
KINDS: Final[tuple[Kind, ...]] = ("output", "errors")


@dataclass(slots=True)
class Batch:
    """A file of requests and what was seen of it."""

    name: str
    tenant: str
    lines: int
    path: Path
    acts: set[str] = field(default_factory=set)
    batch_id: str = ""
    counts: dict[str, int] = field(default_factory=dict)  # the newest that were told
    looks: int = 0
    _told: dict[str, dict[str, int]] = field(default_factory=dict)  # by command
    submit_s: float = 0.0

    @property
    def ids(self) -> list[str]:
        return [_line_name(self.name, number) for number in range(1, self.lines + 1)]

    def look(self, counts: dict[str, int], running_max: int, *, told_by: str = WATCH) -> None:
        """Counts are of distinct lines, whoever was killed: none of the ended ones falls, and nothing is counted twice.

        What `batch status` says comes after all that `batch watch` had said when it was asked."""
        assert counts["total"] == self.lines == sum(counts[name] for name in (*OPEN, *COUNTED)), counts
        for before in (self._told.get(told_by, {}), self._told.get(WATCH, {})):
            fallen = [name for name in COUNTED if counts[name] < before.get(name, 0)]
            assert fallen == [], f"{self.name}: {before} became {counts}"
        assert counts["running"] <= running_max, "no more at work than the window holds"
        self._told[told_by] = counts
        self.looks += 1
        if sum(counts[name] for name in COUNTED) >= self.ended:
            self.counts = counts

    @property
    def ended(self) -> int:
        return sum(self.counts.get(name, 0) for name in COUNTED)


def _line_name(batch: str, number: int) -> str:
    return f"{batch}-{number:06}"


def drawn(folder: Path, name: str, tenant: str, lines: int, rng: random.Random) -> Batch:
    """A file in the format of the OpenAI Batch API, its lines of different lengths."""
    batch = Batch(name, tenant, lines, folder / f"{name}.jsonl")
    with batch.path.open("w") as file:
        for line in batch.ids:
            word = "act" if rng.random() < ACTS else "say"
            if word == "act":
                batch.acts.add(line)
            text = f"{word} {line} {'lorem ' * rng.randrange(1, WORDS_MAX)}"
            body = {"model": AGENT, "input": text}
            request = {"custom_id": line, "method": "POST", "url": "/v1/responses", "body": body}
            file.write(json.dumps(request) + "\n")
    return batch


@dataclass(slots=True)
class Command:
    """A `toolfleet` command of the night; what it prints is in files, so that no pipe can hold it up."""

    popen: subprocess.Popen[bytes]
    out: Path
    err: Path
    told: int = 0  # bytes of `err` that were read

    def progress(self) -> Iterator[dict[str, int]]:
        """The counts of the lines that `batch watch --json` has written since the last time."""
        with self.err.open("rb") as file:
            file.seek(self.told)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # the rest of it is still to come
                self.told += len(line)
                if line.startswith(b"{"):
                    found = json.loads(line)
                    if "progress" in found:
                        yield found["progress"]["counts"]

    def answer(self) -> Any:
        return json.loads(self.out.read_text())


@dataclass(slots=True)
class Night:
    """One fleet over one stack, and the processes that are killed in it."""

    stack: Stack
    sizes: Sizes
    rng: random.Random
    peaks: Peaks
    _other: Batch
    kills: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    outstanding_max: int = 0
    messages_max: int = 0
    undisturbed: tuple[int, int] = (
        0,
        0,
    )  # lines that had ended at the last early kill, and at the first late one
    _plan: list[tuple[int, str]] = field(default_factory=list)
    _struck_at: int = -1
    _up: Process | None = None
    _number: int = 0

    # -- processes ----------------------------------------------------------------------------------------------------

    def begin(self, phase: str) -> None:
        """A fresh fleet: what `up` starts."""
        self.peaks.phase = phase
        self._start_up()
        up = self._up
        assert up is not None
        wait_until(
            lambda: "\nready" in up.log.read_text(errors="replace"), "the fleet is there", seconds=START_S
        )

    def end(self) -> None:
        """As an operator ends it; nothing of it is left."""
        assert self._up is not None
        self.peaks.leave(self._up.pid)
        self._up.signal(signal.SIGTERM)
        assert self._up.ended(START_S) == 0, self._up.tail()

    def _start_up(self) -> None:
        command = [sys.executable, "-m", "toolfleet", UP, "-A", APP]
        self._up = self.stack.run(command, UP, wait=False)
        self.peaks.watch(self._up.pid)

    def command(self, *words: str) -> Command:
        """Begins it."""
        self._number += 1
        out, err = (self.stack.folder / f"command-{self._number}.{one}" for one in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            popen = subprocess.Popen(
                [sys.executable, "-m", "toolfleet", *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.stack.environment(),
                cwd=ROOT,
            )
        self.peaks.watch(popen.pid)
        return Command(popen, out, err)

    def reaped(self, command: Command, *, good: Sequence[int] = (0,), seconds: float = PATIENCE_S) -> int:
        """Its exit code, which has to be a good one."""
        code = command.popen.wait(seconds)
        self.peaks.leave(command.popen.pid)
        assert code in good, (
            f"{command.popen.args}: {code}: {command.err.read_text(errors='replace')[-3000:]}"
        )
        return code

    def done(self, *words: str, good: Sequence[int] = (0,)) -> Command:
        command = self.command(*words)
        self.reaped(command, good=good)
        return command

    def cut_short(self, command: Command, far_enough: Callable[[], bool], role: str) -> None:
        """kill -9 as soon as it is far enough; one that was quicker than that has done its work."""
        wait_until(
            lambda: far_enough() or command.popen.poll() is not None, f"{role} gets on", seconds=PATIENCE_S
        )
        if command.popen.poll() is None:
            command.popen.kill()
            self.kills[role] += 1
        self.reaped(command, good=(0, -signal.SIGKILL))

    def _strike(self, wanted: str) -> bool:
        """Whether there was anybody to strike: kill -9 of one process of that role, or of another one where there is none; `up` is started again by us."""
        live = self.peaks.live()
        roles = [wanted, *self.rng.sample(FLEETS[self.stack.kind], len(FLEETS[self.stack.kind]))]
        role = next((one for one in roles if live.get(one)), None)
        if role is None:
            return False  # all of it is starting again
        os.kill(self.rng.choice(live[role]), signal.SIGKILL)
        self.kills[role] += 1
        if role == UP:
            assert self._up is not None
            assert self._up.ended() == -signal.SIGKILL, self._up.tail()
            self.peaks.leave(self._up.pid)
            self._start_up()
        return True

    # -- batches ------------------------------------------------------------------------------------------------------

    def submit(self, batch: Batch, *, killed: bool = False) -> None:
        """`killed`: the first command dies on the way, and the same one again takes its upload over."""
        words = [
            "batch",
            "submit",
            str(batch.path),
            "--tenant",
            batch.tenant,
            "--idempotency-key",
            batch.name,
            "--json",
        ]
        stored = "SELECT count(*) FROM batch_items WHERE batch_id IN (SELECT id FROM batches WHERE idempotency_key = :key)"
        if killed:
            some = batch.lines // 5
            self.cut_short(
                self.command(*words),
                lambda: self.stack.query(stored, key=batch.name)[0][0] >= some,
                "batch submit",
            )
        began = time.monotonic()
        told = self.done(*words).answer()
        batch.submit_s = time.monotonic() - began
        batch.batch_id = told["batch_id"]
        batch.look(told["counts"], self.sizes.in_flight_max, told_by=STATUS)

    def status(self, batch: Batch) -> None:
        told = self.done("batch", "status", batch.batch_id, "--json").answer()
        batch.look(told["batch"]["counts"], self.sizes.in_flight_max, told_by=STATUS)

    def play(self, batch: Batch, on: Callable[[Batch], None] = lambda batch: None) -> None:
        """Watch it to its end; `on` is called whenever something was told of it. A watch that is killed is begun anew."""
        began = time.monotonic()
        next_look, got_on_at, ended_before = 0, began, 0
        while True:
            watching = self.command("batch", "watch", batch.batch_id, "--json")
            over = False
            while not over:
                over = watching.popen.poll() is not None  # looked at before what it wrote is read
                if self._heard(batch, watching):
                    on(batch)
                if self.sizes.looks and batch.ended >= next_look:
                    next_look = batch.ended + batch.lines // self.sizes.looks
                    self._heard(batch, watching)
                    self._look(batch)
                if batch.ended > ended_before:
                    got_on_at, ended_before = time.monotonic(), batch.ended
                stuck_s = time.monotonic() - got_on_at
                assert stuck_s < PATIENCE_S, f"{batch.name} does not get on: {batch.counts}"
                time.sleep(0.1)  # between two looks at what others wrote; the assertion above bounds them
            if self.reaped(watching, good=(0, 1, -signal.SIGKILL)) >= 0:
                break
        self.seconds[batch.name] = time.monotonic() - began
        self.status(batch)
        assert batch.ended == batch.lines

    def _heard(self, batch: Batch, watching: Command) -> bool:
        """Whether the watch told anything since the last time."""
        told = list(watching.progress())
        for counts in told:
            batch.look(counts, self.sizes.in_flight_max)
        return bool(told)

    def _look(self, batch: Batch) -> None:
        """The whole state at once: what is out is bounded by the window, not by the batch."""
        self.status(batch)
        self.messages_max = max(self.messages_max, sum(self.stack.depths().values()))

    # -- what is done to the large one --------------------------------------------------------------------------------

    def planned(self, batch: Batch) -> None:
        """Who is killed, and how many lines have ended then: each role about as often, in an order of this seed."""
        for (first, last), count in ((EARLY, self.sizes.early), (LATE, self.sizes.late)):
            roles = list(FLEETS[self.stack.kind]) * count
            chosen = roles[:count]
            self.rng.shuffle(chosen)
            steps = [first + (last - first) * at / max(1, count - 1) for at in range(count)]
            self._plan += [(int(step * batch.lines), role) for step, role in zip(steps, chosen, strict=True)]

    def disturbed(self, batch: Batch) -> None:
        """What happens to the large batch at this moment of it."""
        (outstanding,) = self.stack.query("SELECT count(*) FROM commands")[0]
        self.outstanding_max = max(self.outstanding_max, int(outstanding))
        gate = self.stack.folder / GATE
        if (
            self._plan
            and batch.ended >= self._plan[0][0]
            and (batch.ended > self._struck_at or gate.exists())
        ):
            late = len(self._plan) <= self.sizes.late
            if self._strike(self._plan[0][1]):
                first = self.undisturbed[1] or batch.ended
                self.undisturbed = (self.undisturbed[0], first) if late else (batch.ended, 0)
                self._struck_at = batch.ended
                del self._plan[0]
        if not self._other.batch_id and batch.ended >= QUARTER * batch.lines:
            submitted = self.stack.fleet().batches.submit(self._other.path, tenant=self._other.tenant)
            self._other.batch_id = submitted.batch_id
        if self._other.batch_id and len(self._plan) <= self.sizes.late:
            gate.unlink(missing_ok=True)

    def download(self, batch: Batch, kind: str, *, killed: bool = False) -> Path:
        """The file, written by a process of its own; `killed`: one before it dies on the way and leaves no such file."""
        path = self.stack.folder / f"{batch.name}.{kind}.jsonl"
        words = ("batch", "download", batch.batch_id, "--kind", kind, "-o", str(path))
        if killed:
            first = self.command(*words)
            beside = path.with_name(f".{path.name}.{first.popen.pid}.part")
            self.cut_short(first, lambda: beside.exists() and beside.stat().st_size > 0, "batch download")
            if self.kills["batch download"]:
                assert not path.exists(), "a file is there whole or not at all"
        self.done(*words)
        return path


def night(stack: Stack, sizes: Sizes, seed: int) -> dict[str, Any]:
    """The report of it. Raises AssertionError where a line is lost or answered twice, an act was made twice, or lost."""
    ledger = stack.folder / "ledger.txt"
    stack.app, stack.agent = APP, AGENT
    stack.variables = {
        "BATCH_LEDGER": str(ledger),
        "TOOLFLEET_BATCH_IN_FLIGHT_MAX": str(sizes.in_flight_max),
        "TOOLFLEET_LEASE_S": str(sizes.lease_s),
        "TOOLFLEET_LOG_LEVEL": "warning",
        "TOOLFLEET_UNPRICED": "ok",
        "BATCH_MODEL_S": str(sizes.model_s),
        "BATCH_GATE": str(stack.folder / GATE),
        "BATCH_GATE_FROM": _line_name(LARGE, int(sizes.gate_from * sizes.large)),
    }
    rng = random.Random(seed)
    small = drawn(stack.folder, SMALL, "acme", sizes.small, rng)
    large = drawn(stack.folder, LARGE, "acme", sizes.large, rng)
    other = drawn(stack.folder, "other", "globex", sizes.other, rng)
    with Peaks(_servers(stack)) as peaks:
        played = Night(stack, sizes, rng, peaks, other)
        said: Counter[str] = Counter()
        if sizes.small:
            played.begin(SMALL)
            played.submit(small)
            played.play(small)
            said += judged(played, small)
            played.end()

        if sizes.gate_from < 1.0:
            (stack.folder / GATE).touch()
        played.begin(LARGE)
        played.planned(large)
        played.submit(large, killed=sizes.cuts)
        played.play(large, played.disturbed)
        counts = stack.fleet().batches.get(other.batch_id).counts
        other.look({"total": counts.total, **{name: getattr(counts, name) for name in (*OPEN, *COUNTED)}}, 0)
        assert other.ended == other.lines
        said += judged(played, large, killed=sizes.cuts) + judged(played, other, by_python=True)
        played.end()
    return _report(played, [one for one in (small, large, other) if one.lines], said, ledger, seed)


def _servers(stack: Stack) -> dict[str, int]:
    found = (stack.broker_server, stack.database_server)
    return {one.kind: one.process.pid for one in found if one is not None and one.process is not None}


# -- the judge -----------------------------------------------------------------------------------------------------------


def judged(night: Night, batch: Batch, *, killed: bool = False, by_python: bool = False) -> Counter[str]:
    """What was said of the acts. Every line has one answer, in one of the two files, and it is its own."""
    if by_python:
        door = night.stack.fleet().batches
        outputs, errors = ([json.loads(one) for one in door.lines(batch.batch_id, kind)] for kind in KINDS)
    else:
        outputs, errors = (
            _lines(night.download(batch, kind, killed=killed and kind == "output")) for kind in KINDS
        )
    ids = [one["custom_id"] for one in outputs]
    failed = [one["custom_id"] for one in errors]
    assert len(ids) == batch.counts["completed"] and len(failed) == batch.lines - len(ids), (
        "the counts are exact"
    )
    in_output, in_errors = set(ids), set(failed)
    assert ids == [one for one in batch.ids if one in in_output], "each once, in the order of the input"
    assert failed == [one for one in batch.ids if one in in_errors]
    assert in_output | in_errors == set(batch.ids) and not in_output & in_errors

    said: Counter[str] = Counter()
    done = _acts(night.stack.folder / "ledger.txt")
    for line in outputs:
        name = line["custom_id"]
        text = line["response"]["body"]["output"][0]["content"][0]["text"]
        if name not in batch.acts:
            assert text == f"heard {name}"
        elif text == f"acted {name}":
            assert done[name] == 1, f"{name} is said to have acted: {done[name]} acts"
            said["done"] += 1
        else:
            assert text == f"nobody knows of {name}"
            said["nobody knows"] += 1
    for line in errors:
        said[f"line failed: {line['error']['code']}"] += 1
    return said


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return [json.loads(line) for line in file]


def _acts(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text().splitlines()) if ledger.exists() else Counter()


def _report(
    night: Night, batches: Sequence[Batch], said: Counter[str], ledger: Path, seed: int
) -> dict[str, Any]:
    stack = night.stack
    *_, large, other = batches
    acts = _acts(ledger)
    asked = set().union(*(batch.acts for batch in batches))
    assert set(acts) <= asked, "nobody asked for that"
    twice = {name: count for name, count in acts.items() if count > 1}
    assert twice == {}, f"acts that were made more than once: {twice}"
    outcomes = dict(stack.query("SELECT outcome, count(*) FROM results GROUP BY outcome"))
    assert stack.query("SELECT count(*) FROM commands")[0][0] == 0, "nothing is outstanding"
    return {
        "stack": stack.kind,
        "seed": seed,
        "lines": {batch.name: batch.lines for batch in batches},
        "counts": {batch.name: batch.counts for batch in batches},
        "in_flight_max": night.sizes.in_flight_max,
        "outstanding_max": night.outstanding_max,
        "messages_max": night.messages_max,
        "kills": dict(sorted(night.kills.items())),
        "undisturbed_lines": (night.undisturbed[1] or large.lines) - night.undisturbed[0],
        "looks": {batch.name: batch.looks for batch in batches},
        "seconds": {name: round(seconds, 1) for name, seconds in night.seconds.items()},
        "submit_s": {batch.name: round(batch.submit_s, 1) for batch in batches},
        "acts": {
            "asked": len(asked),
            "made": acts.total(),
            "most_of_one": max(acts.values()),
            **said,
        },
        "outcomes": {str(outcome): int(count) for outcome, count in sorted(outcomes.items())},
        "peak_pss_mb": _by_name(night.peaks.mb),
        "servers_pss_mb": _by_name(night.peaks.servers_mb),
        "share": shares(stack, large, other),
    }


def _by_name(peaks: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of each role or server its peak by phase."""
    names = sorted({name for of_phase in peaks.values() for name in of_phase})
    return {
        name: {phase: round(of_phase[name], 1) for phase, of_phase in peaks.items() if name in of_phase}
        for name in names
    }


def shares(stack: Stack, large: Batch, other: Batch) -> dict[str, Any]:
    """How the other tenant's batch fared beside the large one: the part of the lines that were begun while it still had
    some to begin, and of those that ended while both were open, which were its own."""

    def count(batch: Batch, column: str, last: float, *, first: float | None = None) -> int:
        since = released if first is None else first
        asked = f"SELECT count(*) FROM batch_items WHERE batch_id = :of AND {column} BETWEEN :first AND :last"
        return int(stack.query(asked, of=batch.batch_id, first=since, last=last)[0][0])

    ends = "SELECT released_at, ended_at FROM batches WHERE id = :of"
    released, ended = stack.query(ends, of=other.batch_id)[0]
    (began,) = stack.query("SELECT max(started_at) FROM batch_items WHERE batch_id = :of", of=other.batch_id)[
        0
    ]
    begun, done = (
        [count(batch, column, last) for batch in (other, large)]
        for column, last in (("started_at", began), ("ended_at", ended))
    )
    return {
        "begun": round(begun[0] / sum(begun), 3),
        "ended": round(done[0] / sum(done), 3),
        "seconds": round(ended - released, 1),
        "large_left": large.lines - count(large, "ended_at", ended, first=0.0),
    }
