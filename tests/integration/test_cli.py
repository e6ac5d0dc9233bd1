"""The command line as a person or a script meets it: real processes, a small app, its own folder and database."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.cli import run_command
from toolfleet.client import Client, RunRequest
from toolfleet.schemas.views import DeadLetter, RunView
from toolfleet.workers.machine import MACHINE

T = TypeVar("T")

DEADLINE_S = 60.0  # of one command; far above what it takes, so that a busy machine fails nothing
SOON_S = 15.0  # of one thing that is to happen in a fleet that runs
PAUSE_S = 0.02
ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
RESULT_KEYS = {
    *("run_id", "agent", "status", "reason", "output", "turns", "model_calls", "tool_calls", "corrections"),
    *("input_tokens", "output_tokens", "cost_usd", "results", "limit", "found"),
}

APP = '''
import asyncio
import pathlib
import time

from toolfleet import Fleet, ScriptedModel, call, calls, say
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault


async def script(messages, tools):
    said = [m["content"] for m in messages if m["role"] == "user"][-1]
    if messages[-1]["role"] == "tool":
        return say("done: " + said)
    if said == "weather":
        return calls(call("weather", city="Oslo"), call("weather", city="Rome"))
    if said == "fail":
        raise ModelError(ModelFault("bad_request", "the model is out of order", retryable=False))
    if said == "colour":
        return say("\\x1b[31mred\\x1b[0m")
    if said == "hang":
        pathlib.Path("hanging").touch()
        await asyncio.sleep(3600)
    if said == "slow":
        pathlib.Path("slow").touch()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
    if said == "book":
        return call("book", place="Oslo")
    return say("hello: " + said)


fleet = Fleet(model=ScriptedModel(script))


@fleet.tool
def weather(city: str) -> str:
    """The weather of a city."""
    return city + ": 3 degrees"


@fleet.tool(effect=True, tier="medium", timeout_s=60)
async def book(place: str) -> str:
    """Book a place."""
    pathlib.Path("booking").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    with open("booked", "a") as file:
        file.write(place + "\\n")
    return "booked " + place


fleet.agent("desk", model="scripted", tools=[weather, book], parallel_tool_calls="on")
'''

RISKY = '''
from toolfleet import Fleet, ScriptedModel, call, say

fleet = Fleet(model=ScriptedModel([call("destroy", what="d1"), say("hello")]))


@fleet.tool(effect=True, tier="irreversible")
async def destroy(what: str) -> str:
    """Destroy it."""
    return what


fleet.agent("desk", model="scripted", tools=[destroy])
'''


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object of --json: the only thing on stderr."""
        (line,) = self.err.splitlines()
        return json.loads(line)["error"]


@dataclass(frozen=True)
class Folder:
    """Where commands run: holds app.py and the database the commands make there."""

    path: Path

    @property
    def database(self) -> str:
        return f"sqlite:///{self.path / 'toolfleet.db'}"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TOOLFLEET", "OPENAI", "PYTHON"))}
        return {**kept, "PYTHONWARNINGS": "error", "TOOLFLEET_DRAIN_S": "0.2", **more}

    def __call__(self, *arguments: str, given: str | None = None, **environment: str) -> Done:
        """Run one command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "toolfleet", *arguments],
            cwd=self.path,
            env=self.environment(**environment),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def here(self, *arguments: str) -> Done:
        """Run one command inside this process: the same code, without a second and a half of imports."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.path),
            mock.patch.dict(os.environ, self.environment(), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_command(arguments)
        return Done(code, out.getvalue(), err.getvalue())

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start one command; its output is in out.txt and err.txt."""
        with (self.path / "out.txt").open("w") as out, (self.path / "err.txt").open("w") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "toolfleet", *arguments],
                cwd=self.path,
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
            )

    def read(self, name: str) -> str:
        path = self.path / name
        return path.read_text() if path.exists() else ""

    @contextlib.contextmanager
    def serving(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """A fleet in another process, from `ready` on."""
        with running(self.start("up", "-A", "app:fleet", *arguments, **environment)) as process:
            wait_for(lambda: "ready\n" in self.read("out.txt") or process.poll() is not None, DEADLINE_S)
            assert process.poll() is None, self.read("err.txt")
            yield process

    def with_client(self, use: Callable[[Client], Awaitable[T]]) -> T:
        """Read or write the database from here, as another process than the commands."""

        async def used() -> T:
            store = SqlStore(self.database, MACHINE)
            try:
                return await use(Client(store))
            finally:
                await store.aclose()

        return asyncio.run(used())

    def views(self) -> list[RunView]:
        """All runs, newest first."""
        return self.with_client(lambda client: client.store.runs(limit=100))

    def run_id(self) -> str:
        """Of the run made last."""
        return self.views()[0].info.run_id

    def status(self, run_id: str) -> str:
        return self.with_client(lambda client: client.get(run_id)).state.status.value

    def submit(self, text: str) -> str:
        """Accept a run; whatever fleet runs on the database works on it."""
        (run_id,) = self.with_client(lambda client: client.submit([RunRequest("desk", text)]))
        return run_id

    def add_dead(self, letter: DeadLetter) -> None:
        self.with_client(lambda client: client.store.add_dead(letter))


@contextlib.contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def wait_for(condition: Callable[[], bool], deadline_s: float = SOON_S) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(PAUSE_S)  # between two looks at a condition in another process


@pytest.fixture
def toolfleet(tmp_path: Path) -> Folder:
    return made(tmp_path)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder in which one run has completed and then one has failed; made once, copied by `used`."""
    folder = made(tmp_path_factory.mktemp("once"))
    assert folder("run", "desk", "weather", "-A", "app:fleet", "--context", '{"user": 7}').code == 0
    assert folder("run", "desk", "fail", "-A", "app:fleet").code == 1
    return folder


@pytest.fixture
def used(once: Folder, tmp_path: Path) -> Folder:
    return Folder(shutil.copytree(once.path, tmp_path / "used"))


def made(path: Path) -> Folder:
    (path / "app.py").write_text(APP)
    (path / "risky.py").write_text(RISKY)
    return Folder(path)


def dead_step(run_id: str, dead_id: str = "d1") -> DeadLetter:
    return DeadLetter(dead_id, "step", "exec.low", "worker_lost", time.time(), run_id=run_id, turn=1)


# -- run, with the fleet in this process ------------------------------------------------------------------------------


def test_a_run_that_completes_prints_its_output_and_ends_with_0(toolfleet: Folder) -> None:
    done = toolfleet("run", "desk", "weather", "-A", "app:fleet", "--follow")

    assert (done.code, done.out) == (0, "done: weather\n"), done.err
    assert "call.finished" in done.err
    assert "run.finished status=completed" in done.err


def test_a_run_as_json_is_one_document_with_stable_keys(toolfleet: Folder) -> None:
    done = toolfleet("run", "desk", "weather", "-A", "app:fleet", "--json", "--follow")

    assert done.code == 0, done.err
    document = done.document
    assert set(document) == RESULT_KEYS
    assert (document["status"], document["output"], document["tool_calls"]) == (
        "completed",
        "done: weather",
        2,
    )
    assert [one["content"]["data"] for one in document["results"]] == ["Oslo: 3 degrees", "Rome: 3 degrees"]
    events = [json.loads(line)["event"] for line in done.err.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("run.accepted", "run.finished")


def test_a_run_that_fails_ends_with_1_and_says_why(toolfleet: Folder) -> None:
    done = toolfleet("run", "desk", "fail", "-A", "app:fleet")

    assert done.code == 1
    assert "ended failed (model_error)" in done.err
    assert "Traceback" not in done.err


def test_a_run_that_takes_too_long_ends_with_4_and_goes_on_later(toolfleet: Folder) -> None:
    done = toolfleet("run", "desk", "hang", "-A", "app:fleet", "--timeout", "1", "--json")

    assert done.code == 4
    assert done.error["code"] == "timed_out"
    assert toolfleet.status(toolfleet.run_id()) in ("queued", "deciding")


def test_text_comes_from_stdin_and_options_reach_the_run(toolfleet: Folder) -> None:
    options = ["--idempotency-key", "k", "--context", '{"user": 7}', "--deadline", "60"]
    first = toolfleet("run", "desk", "-", "-A", "app:fleet", *options, given="good morning")
    again = toolfleet("run", "desk", "-", "-A", "app:fleet", *options, given="good morning")
    other = toolfleet("run", "desk", "bye", "-A", "app:fleet", *options)
    next_one = toolfleet("run", "desk", "and now?", "-A", "app:fleet", "--previous", toolfleet.run_id())

    assert (first.out, again.out) == ("hello: good morning\n",) * 2
    assert other.code == 2
    assert next_one.out == "hello: and now?\n"
    last, earlier = toolfleet.views()
    assert last.info.previous_run_id == earlier.info.run_id
    assert earlier.info.context == {"user": 7}
    assert earlier.state.deadline_at is not None


def test_an_interrupted_run_is_kept_and_ends_with_130(toolfleet: Folder) -> None:
    with running(toolfleet.start("run", "desk", "hang", "-A", "app:fleet")) as process:
        wait_for((toolfleet.path / "hanging").exists, DEADLINE_S)
        process.send_signal(signal.SIGINT)

        assert process.wait(DEADLINE_S) == 130
    assert "is kept and goes on" in toolfleet.read("err.txt")
    assert toolfleet.status(toolfleet.run_id()) in ("queued", "deciding")


# -- up, and a run from another process -------------------------------------------------------------------------------


def test_up_serves_runs_of_other_processes_until_it_is_told_to_stop(toolfleet: Folder) -> None:
    with toolfleet.serving() as process:
        done = toolfleet("run", "desk", "weather")
        process.send_signal(signal.SIGTERM)

        assert (done.code, done.out) == (0, "done: weather\n"), done.err
        assert process.wait(DEADLINE_S) == 0, toolfleet.read("err.txt")
    served = toolfleet.read("out.txt")
    assert "agent desk: scripted, 2 tool(s)" in served
    assert "tool book: medium" in served


def test_up_lets_a_step_in_flight_end_before_it_stops(toolfleet: Folder) -> None:
    with toolfleet.serving(TOOLFLEET_DRAIN_S="60") as process:
        run_id = toolfleet.submit("slow")
        wait_for((toolfleet.path / "slow").exists)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in toolfleet.read("err.txt"))
        (toolfleet.path / "go").touch()

        assert process.wait(DEADLINE_S) == 0
    assert toolfleet.status(run_id) == "completed"


def test_a_second_signal_stops_at_once_and_loses_nothing(toolfleet: Folder) -> None:
    with toolfleet.serving(TOOLFLEET_DRAIN_S="600") as process:
        run_id = toolfleet.submit("slow")
        wait_for((toolfleet.path / "slow").exists)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "stopping" in toolfleet.read("err.txt"))
        process.send_signal(signal.SIGINT)

        assert process.wait(SOON_S) == 130
    (toolfleet.path / "go").touch()
    with toolfleet.serving():
        wait_for(lambda: toolfleet.status(run_id) == "completed", DEADLINE_S)


def test_a_second_up_on_a_database_is_refused(toolfleet: Folder) -> None:
    with toolfleet.serving():
        done = toolfleet("up", "-A", "app:fleet")

    assert done.code == 5
    assert "error: a fleet is running already" in done.err
    assert "Traceback" not in done.err


def test_a_run_goes_on_here_when_the_other_process_dies(toolfleet: Folder) -> None:
    with toolfleet.serving() as server:
        server_out = toolfleet.path / "out.txt"
        server_out.rename(toolfleet.path / "server.txt")
        with running(toolfleet.start("run", "desk", "slow", "-A", "app:fleet")) as process:
            wait_for((toolfleet.path / "slow").exists, DEADLINE_S)
            server.kill()
            wait_for(lambda: "going on here" in toolfleet.read("err.txt"))
            (toolfleet.path / "go").touch()

            assert process.wait(DEADLINE_S) == 0, toolfleet.read("err.txt")
    assert toolfleet.read("out.txt") == "hello: slow\n"


def test_without_a_fleet_and_without_an_app_nothing_is_accepted(toolfleet: Folder) -> None:
    toolfleet.here("db", "upgrade")

    done = toolfleet("run", "desk", "weather")

    assert done.code == 5
    assert "no fleet is running" in done.err
    assert "toolfleet up -A" in done.err
    assert toolfleet.views() == []


def test_a_call_that_waits_is_decided_from_the_command_line(toolfleet: Folder) -> None:
    waiting = toolfleet("run", "desk", "hi", "-A", "risky:fleet", "--timeout", "5")
    assert waiting.code == 4, "it goes on when somebody has decided"

    (asked,) = json.loads(toolfleet("approvals", "ls", "--json").out)["approvals"]
    assert (asked["tool"], asked["status"], asked["arguments"]) == ("destroy", "pending", {"what": "d1"})
    nobody = toolfleet("approvals", "approve", asked["id"])
    wrong = toolfleet("approvals", "approve", asked["id"], "--token", "tfa_wrong")
    assert (nobody.code, wrong.code) == (2, 2) and "TOOLFLEET_APPROVER_TOKEN" in nobody.err
    assert "no approver" in wrong.err
    token = toolfleet("approvers", "add", "ann").out.strip()
    done = toolfleet(
        "approvals", "approve", asked["id"], "--token", token, "--hash", asked["arguments_hash"], "--json"
    )
    assert json.loads(done.out)["granted_by"] == ["ann"]
    assert (
        "ann" in toolfleet("approvers", "ls").out
        and "granted" in toolfleet("approvals", "show", asked["id"]).out
    )

    again = toolfleet("run", "desk", "hi", "-A", "risky:fleet", "--approvals", "off")
    assert again.code == 0
    assert "happened" in toolfleet("effects", "ls").out
    held = json.loads(toolfleet("effects", "ls", "--json").out)["effects"][0]["call_id"]
    assert json.loads(toolfleet("effects", "show", held, "--json").out)["tool"] == "destroy"
    closed = toolfleet("effects", "resolve", held, "happened", "--note", "seen", "--token", token)
    assert closed.code == 2 and "it is happened" in closed.err
    person = json.loads(toolfleet("approvers", "ls", "--json").out)["approvers"][0]["id"]
    assert toolfleet("approvers", "revoke", person).code == 0
    assert "nothing waits" in toolfleet("approvals", "ls").err


# -- runs -------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_shown_and_paged(used: Folder) -> None:
    newest, oldest = used.here("runs", "ls", "--json").document["runs"]

    page = used.here("runs", "ls", "--limit", "1", "--json").document
    rest = used.here("runs", "ls", "--before", page["next_before"], "--json").document
    failed = used.here("runs", "ls", "--status", "failed", "--agent", "desk", "--json").document
    listed = used.here("runs", "ls")
    shown = used.here("runs", "show", oldest["run_id"])
    document = used.here("runs", "show", oldest["run_id"], "--json").document

    assert [page["runs"][0]["run_id"], rest["runs"][0]["run_id"]] == [newest["run_id"], oldest["run_id"]]
    assert [run["run_id"] for run in failed["runs"]] == [newest["run_id"]]
    header, *rows = listed.out.splitlines()
    assert header.split()[:3] == ["RUN", "STATUS", "REASON"]
    assert [row.split()[0] for row in rows] == [newest["run_id"], oldest["run_id"]]
    assert 'weather({"city":"Oslo"})' in shown.out
    assert "turn 2" in shown.out
    assert "merge" in shown.out
    assert [call["tool"] for call in document["calls"]] == ["weather", "weather"]
    assert document["calls"][0]["arguments"] == {"city": "Oslo"}
    assert {step["kind"] for step in document["steps"]} == {"decide", "call", "merge"}
    assert (document["outstanding"], document["open_calls"]) == ([], [])
    assert len(document["usage"]) == 2


def test_a_cancel_says_which_effects_have_begun(toolfleet: Folder) -> None:
    with toolfleet.serving():
        run_id = toolfleet.submit("book")
        wait_for((toolfleet.path / "booking").exists)

        ack = toolfleet.here("runs", "cancel", run_id, "--json").document
        said = toolfleet.here("runs", "cancel", run_id)
        (toolfleet.path / "go").touch()
        wait_for(lambda: toolfleet.status(run_id) == "cancelled")

    assert ack["status"] == "cancelling"
    assert len(ack["running"]) == 1
    assert ack["running"][0] in said.out
    assert toolfleet.read("booked") == "Oslo\n"


def test_a_cancel_of_a_queued_run_needs_no_fleet(used: Folder) -> None:
    run_id = used.submit("later")

    done = used("runs", "cancel", run_id)

    assert (done.code, done.out) == (0, f"run {run_id} is cancelled\n")


# -- dead -------------------------------------------------------------------------------------------------------------


def test_a_step_that_was_given_up_is_replayed_as_a_new_run(used: Folder) -> None:
    old = used.views()[-1].info.run_id
    used.add_dead(dead_step(old))

    listed = used.here("dead", "ls", "--json").document
    replayed = used.here("dead", "replay", "d1", "--json")
    again = used.here("dead", "replay", "d1", "--json")

    assert [letter["id"] for letter in listed["dead"]] == ["d1"]
    assert replayed.code == 0, replayed.err
    new, *_ = used.views()
    assert (new.info.run_id, new.info.retry_of) == (replayed.document["new_run_id"], old)
    assert (new.info.input, new.info.agent, new.info.context) == ("weather", "desk", {"user": 7})
    assert (again.code, again.error["code"]) == (2, "unknown_dead_letter")
    with used.serving():
        wait_for(lambda: used.status(new.info.run_id) == "completed")


def test_a_replay_waits_for_the_end_of_the_old_run(used: Folder) -> None:
    used.add_dead(dead_step(used.submit("later")))

    done = used.here("dead", "replay", "d1")

    assert done.code == 2
    assert "only a run that has ended" in done.err
    assert len(used.here("dead", "ls", "--json").document["dead"]) == 1


def test_a_run_started_again_shares_its_effects_unless_told_to_repeat_them(toolfleet: Folder) -> None:
    (toolfleet.path / "go").touch()
    toolfleet("run", "desk", "book", "-A", "app:fleet")
    old = toolfleet.run_id()
    toolfleet.add_dead(dead_step(old))

    replayed = toolfleet.here("dead", "replay", "d1", "--json")
    again = toolfleet.here("runs", "retry", old, "--json")
    with toolfleet.serving():
        for done in (replayed, again):
            assert done.code == 0, done.err
            wait_for(lambda done=done: toolfleet.status(done.document["new_run_id"]) == "completed")
        shared = toolfleet.read("booked")
        told = toolfleet.here("runs", "retry", old, "--repeat-effects", "--json")
        wait_for(lambda: toolfleet.status(told.document["new_run_id"]) == "completed")

    assert shared == "Oslo\n", "it was booked once"
    assert toolfleet.read("booked") == "Oslo\nOslo\n", "and again where that was wanted"


def test_a_refused_message_cannot_be_replayed_here_and_says_why(toolfleet: Folder) -> None:
    toolfleet.here("db", "upgrade")
    body = b"tf1.\x1b[31m\xff"
    toolfleet.add_dead(DeadLetter("d2", "message", "exec.low", "malformed_message", time.time(), body=body))

    shown = toolfleet.here("dead", "show", "d2")
    done = toolfleet.here("dead", "replay", "d2")

    assert r"\x1b[31m\xff" in shown.out
    assert done.code == 5
    assert "a key that lives as long as its process" in done.err
    assert "Nothing is lost" in done.err


def test_a_letter_is_discarded_only_when_that_is_confirmed(toolfleet: Folder) -> None:
    toolfleet.here("db", "upgrade")
    toolfleet.add_dead(DeadLetter("d2", "message", "exec.low", "unsigned_message", time.time(), body=b"x"))

    asked = toolfleet.here("dead", "discard", "d2")
    told = toolfleet.here("dead", "discard", "d2", "--yes")

    assert asked.code == 2
    assert "--yes" in asked.err
    assert (told.code, told.out) == (0, "removed d2\n")
    assert toolfleet.here("dead", "ls", "--json").document["dead"] == []


# -- bad input --------------------------------------------------------------------------------------------------------


def test_a_request_that_cannot_be_accepted_is_a_clear_error(toolfleet: Folder) -> None:
    cases = [
        (("run", "nobody", "hi"), "no agent is called 'nobody'\nAgents: desk."),
        (("run", "desk", "hi", "--previous", "run_0"), "run_0"),
        (("run", "desk", ""), "must be a text that is not empty"),
    ]
    for arguments, what in cases:
        done = toolfleet(*arguments, "-A", "app:fleet")

        assert (done.code, done.out) == (2, ""), (arguments, done.err)
        assert what in done.err, (arguments, done.err)
        assert "Traceback" not in done.err


def test_unknown_names_are_clear_errors(toolfleet: Folder) -> None:
    toolfleet.here("db", "upgrade")
    cases = [
        (("runs", "show", "run_0"), "no run is called 'run_0'", "toolfleet runs ls"),
        (("runs", "cancel", "run_0"), "no run is called 'run_0'", "toolfleet runs ls"),
        (("runs", "ls", "--status", "dreaming"), "no run status is called 'dreaming'", "completed"),
        (("dead", "show", "d0"), "no dead letter is called 'd0'", "toolfleet dead ls"),
        (("run", "desk", "hi", "--context", "[]"), "--context is not an object", "--context"),
        (("runs", "lst"), "No such command 'lst'", "--help"),
        (("up",), "no app was given", "TOOLFLEET_APP"),
    ]
    for arguments, what, hint in cases:
        done = toolfleet.here(*arguments)

        assert (done.code, done.out) == (2, ""), (arguments, done.err)
        assert done.err.startswith(f"error: {what}"), (arguments, done.err)
        assert hint in done.err, (arguments, done.err)


def test_an_agent_with_a_tool_nobody_declared_is_a_clear_error(toolfleet: Folder) -> None:
    (toolfleet.path / "lost.py").write_text(
        'from toolfleet import Fleet\n\nfleet = Fleet()\nfleet.agent("desk", model="m", tools=["nothing"])\n'
    )

    done = toolfleet("up", "-A", "lost:fleet")

    assert done.code == 2
    assert "'nothing' is no tool of this fleet" in done.err
    assert "lost.py:4" in done.err


def test_a_database_that_is_not_there_not_migrated_or_newer_is_refused(toolfleet: Folder) -> None:
    missing = toolfleet.here("runs", "ls")
    not_made = not (toolfleet.path / "toolfleet.db").exists()
    sqlite3.connect(toolfleet.path / "empty.db").close()
    (toolfleet.path / "empty.db").touch()
    empty = toolfleet.here("runs", "ls", "--database", "sqlite:///empty.db", "--json")
    made = toolfleet.here("db", "upgrade")
    with contextlib.closing(sqlite3.connect(toolfleet.path / "toolfleet.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'ffff'")
        database.execute("UPDATE schema_carries SET oldest = 'ffff'")
        database.commit()
    newer = [
        toolfleet(*arguments)
        for arguments in (("up", "-A", "app:fleet"), ("runs", "ls"), ("db", "check"), ("db", "upgrade"))
    ]

    assert missing.code == 5
    assert "there is no database at" in missing.err
    assert not_made
    assert (empty.code, empty.error["code"]) == (5, "not_migrated")
    assert "toolfleet db upgrade" in empty.error["hint"]
    assert made.code == 0
    assert [one.code for one in newer] == [5, 5, 5, 5]
    assert all("ffff" in one.err and "Traceback" not in one.err for one in newer)


def test_a_file_that_is_no_database_is_a_clear_error(toolfleet: Folder) -> None:
    (toolfleet.path / "toolfleet.db").write_text("this is no database, however long it is " * 50)

    done = [
        toolfleet(*arguments) for arguments in (("runs", "ls"), ("up", "-A", "app:fleet"), ("db", "check"))
    ]

    assert [one.code for one in done] == [5, 5, 5], [one.err for one in done]


# -- db and doctor ----------------------------------------------------------------------------------------------------


def test_the_schema_is_made_checked_and_told(toolfleet: Folder) -> None:
    before = toolfleet.here("db", "current")
    made = toolfleet.here("db", "upgrade", "--json").document
    again = toolfleet.here("db", "upgrade")
    checked = toolfleet.here("db", "check", "--json").document

    assert before.out == "none\n"
    assert not (toolfleet.path / "none").exists()
    assert made["before"] is None
    assert made["revision"] == toolfleet.here("db", "current").out.strip() == checked["revision"]
    assert "already" in again.out
    assert checked["ok"] is True


def test_the_doctor_finds_what_is_wrong_and_hides_secrets(used: Folder) -> None:
    key = "sk-very-secret"
    ill = used("doctor", "--database", "sqlite:///none.db", OPENAI_API_KEY=key)
    used.submit("later")
    well = used("doctor", "-A", "app:fleet", "--json", OPENAI_API_KEY=key, TOOLFLEET_EXEC_SLOTS="7")

    assert ill.code == 5
    assert "FAIL  database" in ill.out
    assert "fix:" in ill.out
    assert well.code == 0, well.out
    assert key not in ill.out + well.out
    document = well.document
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["durability"]["detail"] == "journal_mode WAL, synchronous FULL"
    assert checks["outstanding"]["status"] == "WARN"
    assert document["counts"]["runs.completed"] == 1
    settings = {setting["name"]: setting for setting in document["settings"]}
    assert settings["exec_slots"] == {"name": "exec_slots", "value": "7", "source": "TOOLFLEET_EXEC_SLOTS"}
    assert settings["openai_api_key"]["value"] == "(hidden)"
    assert settings["database"]["source"] == "default"


def test_the_doctor_says_who_holds_the_fleet(toolfleet: Folder) -> None:
    with toolfleet.serving() as process:
        done = toolfleet("doctor")

    assert f"running in process {process.pid}" in done.out


# -- what is printed --------------------------------------------------------------------------------------------------


def test_piped_output_holds_no_escape_codes(used: Folder) -> None:
    run_id = used.submit("\x1b[31mweather")

    commands = (
        ("runs", "ls"),
        ("runs", "show", run_id),
        ("doctor",),
        ("--help",),
        ("runs", "show", "\x1b[1m"),
    )
    for arguments in commands:
        done = used(*arguments)

        assert ESCAPES.findall(done.out + done.err) == [], arguments


def test_a_terminal_gets_tables_and_never_the_codes_of_a_model(toolfleet: Folder) -> None:
    colour = on_a_terminal(toolfleet, "run", "desk", "colour", "-A", "app:fleet")
    table = on_a_terminal(toolfleet, "runs", "ls")
    plain = on_a_terminal(toolfleet, "runs", "ls", NO_COLOR="1")

    assert r"\x1b[31mred\x1b[0m" in colour
    assert "\x1b[31m" not in colour
    assert "\x1b[1m" in table
    assert "\x1b" not in plain
    assert toolfleet.run_id() in table and toolfleet.run_id() in plain


def test_a_reader_that_has_gone_is_no_error(used: Folder) -> None:
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [sys.executable, "-m", "toolfleet", "runs", "ls"],
        cwd=used.path,
        env=used.environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (141, "")


def on_a_terminal(toolfleet: Folder, *arguments: str, **environment: str) -> str:
    """What a command prints where stdout and stderr are a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "toolfleet", *arguments],
        cwd=toolfleet.path,
        env=toolfleet.environment(TERM="xterm-256color", COLUMNS="200", **environment),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    written = b""
    until = time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < until and select.select([master], [], [], DEADLINE_S)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # Linux: the last one who had the terminal open has closed it
                break
            if not piece:
                break
            written += piece
        assert process.wait(DEADLINE_S) == 0, written
    finally:
        process.kill()
        os.close(master)
    return written.decode()


# -- keys and quotas ---------------------------------------------------------------------------------------------------


def test_keys_are_made_rotated_and_revoked_and_no_token_is_shown_twice(used: Folder) -> None:
    made = used.here(
        *("keys", "create", "svc", "--tenant", "acme", "--scope", "submit", "--agent", "desk"),
        *("--permission", "refunds:write", "--expires", "30d", "--json"),
    ).document
    plain = used.here("keys", "create", "ops", "--tenant", "*", "--scope", "admin", "--scope", "read")
    renewed = used.here("keys", "rotate", made["id"], "--overlap", "1h", "--json").document
    used.here("approvers", "add", "ann")

    listed = used.here("keys", "ls", "--json").document["keys"]
    assert [one["name"] for one in listed] == ["svc", "ops", "svc", "ann"]
    assert (listed[0]["scopes"], listed[0]["agents"], listed[0]["permissions"]) == (
        ["submit"],
        ["desk"],
        ["refunds:write"],
    )
    assert renewed["replaces"] == made["id"] and listed[0]["expires_at"] < listed[2]["expires_at"]
    assert listed[3]["scopes"] == ["approve"]
    everything = json.dumps(listed) + used.here("keys", "ls").out
    tokens = [made["token"], renewed["token"], plain.out.strip()]
    assert all(token.startswith("tfk_") and token not in everything for token in tokens)
    assert "shown this once" in plain.err
    assert used.here("keys", "revoke", made["id"], "--json").document["revoked"]
    assert [
        one["state"] for one in used.here("keys", "ls", "--tenant", "acme", "--json").document["keys"]
    ] == [
        "revoked",
        "active",
        "active",
        "active",
    ]


def test_a_key_that_approves_says_what_it_may_grant(toolfleet: Folder) -> None:
    assert toolfleet.here("db", "upgrade").code == 0
    made = toolfleet.here(
        *("keys", "create", "boss", "--scope", "approve", "--tool", "refund", "--tier", "high"),
        *("--grant", "refunds:write", "--grant", "notes:write", "--json"),
    ).document
    renewed = toolfleet.here("keys", "rotate", made["id"], "--json").document

    for one in (made, renewed, *toolfleet.here("keys", "ls", "--json").document["keys"]):
        assert (one["grants"], one["tools"], one["tiers"], one["permissions"]) == (
            ["refunds:write", "notes:write"],
            ["refund"],
            ["high"],
            [],
        )
    refused = toolfleet.here("keys", "create", "svc", "--grant", "refunds:write")
    assert refused.code == 2 and "without the scope 'approve' cannot grant refunds:write" in refused.err


def test_a_key_or_a_quota_that_cannot_be_is_an_error_with_what_to_do(used: Folder) -> None:
    for arguments, said in (
        (("keys", "create", "svc", "--scope", "root"), "Scopes: submit, read, approve, admin"),
        (("keys", "create", "svc", "--expires", "soon"), "30m, 12h or 90d"),
        (("keys", "rotate", "key_9"), "no such key"),
        (("keys", "revoke", "key_9"), "toolfleet keys ls"),
        (("quotas", "set", " "), "a tenant has a name"),
    ):
        refused = used.here(*arguments)
        assert refused.code == 2 and said in refused.err, arguments


def test_quotas_hold_for_the_command_line_too(used: Folder) -> None:
    assert used.here("quotas", "set", "default", "--cost-usd-per-day", "0").code == 0
    assert used.here("quotas", "ls", "--json").document["quotas"] == [
        {
            "tenant": "default",
            "runs_in_flight_max": None,
            "requests_per_minute_max": None,
            "cost_usd_per_day_max": 0.0,
            "runs_in_flight": 0,
            "cost_usd_today": 0.0,
        }
    ]

    refused = used.here("run", "desk", "weather", "-A", "app:fleet", "--json")

    assert (refused.code, refused.error["code"]) == (5, "quota_exceeded")
    assert "midnight" in refused.error["hint"]
