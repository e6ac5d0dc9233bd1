"""Real children: everything a tool can do to its process is an answer, in time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, SecretStr

from tests.integration import child_tools
from toolfleet.adapters.tools import child_pool
from toolfleet.adapters.tools.child_pool import (
    ChildDied,
    ChildJob,
    ChildPool,
    ChildRaised,
    ChildReply,
    ChildReturned,
    ChildTimedOut,
    ChildTooLarge,
    ChildUnserialisable,
)
from toolfleet.adapters.tools.result_json import Encoded, TooLarge, Unserialisable, to_json
from toolfleet.schemas.tools import ToolContext

TOOLS = child_tools.__name__
ENOUGH_S = 30.0  # a deadline that is not meant to be met
SOON_S = 20.0  # within which what should happen happens, on a busy machine too


@contextlib.asynccontextmanager
async def opened(
    *, size: int = 1, setup: tuple[str, ...] = (TOOLS,), **options: Any
) -> AsyncIterator[ChildPool]:
    pool = ChildPool(size=size, setup=setup, **options)
    try:
        yield pool
    finally:
        await pool.aclose()
        assert not pool._all and not pool._dying, "children are left"


async def call(pool: ChildPool, name: str, *, timeout_s: float = ENOUGH_S, **arguments: Any) -> ChildReply:
    return await pool.call(ChildJob(f"{TOOLS}:{name}", arguments), timeout_s=timeout_s)


def value(reply: ChildReply) -> Any:
    assert isinstance(reply, ChildReturned), reply
    return orjson.loads(reply.value_json)


def asked(name: str, *, timeout_s: float = ENOUGH_S, **arguments: Any) -> ChildReply:
    """The answer to one call; the pool has to answer another one afterwards."""

    async def scene() -> ChildReply:
        async with opened() as pool:
            reply = await call(pool, name, timeout_s=timeout_s, **arguments)
            assert value(await call(pool, "echo", value="alive")) == "alive"
            return reply

    return asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.01)


def running(pid: int) -> bool:
    """Whether it exists and is not merely waiting to be reaped by whoever inherited it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return sys.platform != "linux" or state(pid) not in ("Z", "X", "")


def state(pid: int) -> str:
    """The letter the kernel has for it; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def noted(path: Path) -> int:
    """The number a tool left in the file."""
    await until(path.exists)
    return int(path.read_text())  # noqa: ASYNC240 - a few bytes


# What a call comes to


def test_a_value_comes_back_as_strict_json() -> None:
    reply = asked("echo", value={"a": [1, 2.5, "ü", None, True]})

    assert isinstance(reply, ChildReturned)
    assert reply.value_json == '{"a":[1,2.5,"ü",null,true]}'.encode()
    assert reply.notes == () and 0 <= reply.seconds < SOON_S


@pytest.mark.parametrize(
    ("name", "error_type", "message"),
    [
        ("raises", "ValueError", "no such order"),
        ("raises_unpicklable", "Unpicklable", "1 and 2"),
        ("raises_unspeakable", "Unspeakable", ""),
        ("raises_interrupt", "KeyboardInterrupt", ""),
        ("exits", "SystemExit", "3"),
    ],
)
def test_whatever_is_raised_is_a_value(name: str, error_type: str, message: str) -> None:
    reply = asked(name)

    assert isinstance(reply, ChildRaised)
    assert (reply.error_type, reply.message, reply.data, reply.began) == (error_type, message, {}, True)
    assert f"in {name}" in reply.traceback_tail and error_type in reply.traceback_tail
    assert reply.module == (TOOLS if message == "1 and 2" or "Unsp" in error_type else "builtins")


def test_what_an_exception_says_of_itself_travels_as_data() -> None:
    reply = asked("raises_described")

    assert isinstance(reply, ChildRaised)
    assert reply.data == {"reason_code": "later", "retry_after_s": 2.5, "code": "busy"}


def test_a_description_that_is_not_json_is_left_out() -> None:
    reply = asked("raises_badly_described")

    assert isinstance(reply, ChildRaised) and reply.data == {} and reply.message == "odd"


def test_the_text_of_an_exception_is_cut_and_made_whole() -> None:
    reply = asked("raises_broken_text")

    assert isinstance(reply, ChildRaised)
    assert reply.message.startswith("a?b\ufffdcxxx") and len(reply.message) == 2_000


@pytest.mark.parametrize(
    ("name", "reason", "exit_code", "number"),
    [
        ("exits_at_once", "exit", 4, None),
        ("kills_itself", "signal", None, signal.SIGKILL),
        ("segfaults", "signal", None, signal.SIGSEGV),
    ],
)
def test_a_process_that_ends_is_reported_at_once(
    name: str, reason: str, exit_code: int | None, number: int | None
) -> None:
    reply = asked(name)

    assert isinstance(reply, ChildDied) and reply.began
    assert (reply.reason, reply.exit_code, reply.signal) == (reason, exit_code, number)


def test_the_last_words_of_a_child_are_in_the_detail() -> None:
    said, crashed = asked("exits_at_once"), asked("segfaults")

    assert isinstance(said, ChildDied) and "goodbye" in said.detail
    assert isinstance(crashed, ChildDied) and "in segfaults" in crashed.detail


@pytest.mark.parametrize("name", ["hangs", "hangs_and_swallows"])
def test_a_call_that_hangs_is_ended_at_its_deadline(name: str) -> None:
    reply = asked(name, timeout_s=0.3)

    assert reply == ChildTimedOut(0.3)


def test_a_child_that_closes_its_socket_is_replaced() -> None:
    reply = asked("changes_folder_and_closes_everything")

    assert isinstance(reply, ChildDied) and reply.began


# What comes back


def test_numbers_that_json_does_not_have_become_null_and_are_named() -> None:
    reply = asked("not_a_number")

    assert value(reply) == {"mean": None, "rows": [1.0, None], "n": 3}
    assert isinstance(reply, ChildReturned)
    assert reply.non_finite_paths == ("result.mean", "result.rows[1]")
    assert reply.notes == ("not a finite number, given as null: result.mean, result.rows[1]",)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("an_object", "result.found: object is not JSON"),
        ("a_set_of_objects", "result: set is not JSON"),
        ("contains_itself", "nested more than 200 deep"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(name: str, reason: str) -> None:
    reply = asked(name)

    assert isinstance(reply, ChildUnserialisable) and reason in reply.reason


def test_ten_megabytes_are_refused_in_the_child() -> None:
    async def scene() -> tuple[ChildReply, int]:
        async with opened() as pool:
            assert value(await call(pool, "nothing")) is None
            (child,) = pool._all
            most = 0
            append = child.received.__class__

            class Counting(append):  # type: ignore[valid-type, misc]
                def __iadd__(self, part: bytes) -> Any:
                    nonlocal most
                    most = max(most, len(self) + len(part))
                    return super().__iadd__(part)

            child.received = Counting()
            return await call(pool, "text_of", size=10_000_000), most

    reply, most = asyncio.run(scene())

    assert isinstance(reply, ChildTooLarge)
    assert (reply.size_bytes, reply.limit_bytes) == (10_000_002, 1_000_000)
    assert most < 1_000


def test_a_result_of_just_the_limit_comes_back_whole() -> None:
    reply = asked("text_of", size=999_998)

    assert isinstance(reply, ChildReturned) and len(reply.value_json) == 1_000_000


def test_arguments_larger_than_the_sockets_buffer_arrive() -> None:
    text = "y" * 900_000

    assert value(asked("echo", value=text)) == text


# What is called


@pytest.mark.parametrize(
    ("target", "error_type"),
    [
        (f"{TOOLS}:no_such_function", "TargetNotFound"),
        (f"{TOOLS}:constant", "TargetNotFound"),
        ("no_such_module_at_all:x", "ModuleNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_never_began(target: str, error_type: str) -> None:
    async def scene() -> ChildReply:
        async with opened() as pool:
            reply = await pool.call(ChildJob(target, {}), timeout_s=ENOUGH_S)
            assert value(await call(pool, "nothing")) is None
            return reply

    reply = asyncio.run(scene())

    assert isinstance(reply, ChildRaised) and not reply.began
    assert reply.error_type == error_type and target.split(":")[0] in reply.message


def context() -> dict[str, Any]:
    return asdict(ToolContext("r1", 1, "c7", 1, "key", "tenant", "agent", "correlation", deadline_at=0.0))


@pytest.mark.parametrize(
    ("name", "parameter", "expected"),
    [
        ("with_context", None, ["ToolContext", "c7", "w"]),
        ("with_context", "ctx", ["ToolContext", "c7", "w"]),
        ("with_context_last", "told", ["ToolContext", "w"]),
        ("with_context_last", None, ["NoneType", "w"]),
    ],
)
def test_the_context_goes_where_the_function_takes_it(
    name: str, parameter: str | None, expected: Any
) -> None:
    async def scene() -> ChildReply:
        async with opened() as pool:
            job = ChildJob(f"{TOOLS}:{name}", {"word": "w"}, context(), parameter)
            return await pool.call(job, timeout_s=ENOUGH_S)

    assert value(asyncio.run(scene())) == expected


def test_methods_wrapped_functions_and_coroutines_are_found() -> None:
    async def scene() -> list[Any]:
        async with opened() as pool:
            return [
                value(await call(pool, "Holder.inner")),
                value(await call(pool, "wrapped", value=3)),
                value(await call(pool, "coroutine", word="later")),
            ]

    assert asyncio.run(scene()) == ["inner", 3, "later"]


def test_a_declared_tool_gets_arguments_of_its_own_types(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(
        textwrap.dedent("""
        from datetime import date
        import beside
        from toolfleet import ToolContext, tool

        @tool
        def year(day: date, ctx: ToolContext) -> list:
            "The year of a day."
            return [day.year, ctx.call_id, beside.WORD, __name__ == "__main__"]
        """)
    )
    (tmp_path / "beside.py").write_text("WORD = 'beside'")

    async def scene() -> ChildReply:
        async with opened(setup=(str(script),)) as pool:
            job = ChildJob(f"{script}:year", {"day": "2024-02-29"}, context())
            return await pool.call(job, timeout_s=ENOUGH_S)

    assert value(asyncio.run(scene())) == [2024, "c7", "beside", False]


# The rules of a result, without a process: `async def` tools on the loop obey the same


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    colour: Colour


class Row(BaseModel):
    at: datetime
    free: dict[str, Any]
    key: SecretStr = SecretStr("hidden")


class Odd(str):
    def __str__(self) -> str:
        raise ValueError("no")


class Explosive(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def doubled(times: int) -> Any:
    found: Any = [1]
    for _ in range(times):
        found = [found, found]
    return found


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (Point(1.5, Colour.RED), {"x": 1.5, "colour": "red"}),
        ((Decimal("1.10"), datetime(2024, 1, 2, tzinfo=UTC)), ["1.10", "2024-01-02T00:00:00+00:00"]),
        ([2**64 - 1, -(2**63), True, None], [2**64 - 1, -(2**63), True, None]),
        (Odd("text"), "text"),
        ("pair \ud83d\ude00", "pair \U0001f600"),
        (nested(200), nested(200)),
    ],
    ids=["dataclass", "decimal-date", "integers", "subclass", "surrogate-pair", "deep"],
)
def test_what_has_a_form_in_json_is_written(given: Any, body: Any) -> None:
    encoded = to_json(given, bytes_max=10_000)

    assert isinstance(encoded, Encoded) and orjson.loads(encoded.body) == body
    assert encoded.non_finite_paths == ()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"a": [1, {2}]}, "result.a[1]: set is not JSON"),
        ({"a": {1: 2}}, "result.a: a key is int, and JSON has text keys only"),
        ([2**64], "result[0]: an integer of more than 64 bits; return it as text"),
        (b"x", "result: bytes is not JSON"),
        (Point, "result: type is not JSON"),
        ({"a": Explosive()}, "result.a: reading it raised SystemExit"),
        ({"\x00": 1, "\ufffd": 2}, "result: two keys become the same text"),
    ],
)
def test_what_has_no_form_in_json_is_refused_with_its_place(given: Any, reason: str) -> None:
    assert to_json(given, bytes_max=1000) == Unserialisable(reason)


def test_nesting_is_bounded() -> None:
    refused = to_json(nested(202), bytes_max=10_000)

    assert isinstance(refused, Unserialisable) and "nested more than 200 deep" in refused.reason


def test_a_small_object_that_is_endless_when_written_is_too_large() -> None:
    assert isinstance(to_json(doubled(100), bytes_max=10_000), TooLarge)


def test_characters_that_are_no_text_are_replaced_and_named() -> None:
    encoded = to_json({"a": ["x\ud800y", "n\x00l"], "k\udfff": "ü"}, bytes_max=1000)

    assert isinstance(encoded, Encoded)
    assert orjson.loads(encoded.body) == {"a": ["x\ufffdy", "n\ufffdl"], "k\ufffd": "ü"}
    assert encoded.replaced_paths == ("result.a[0]", "result.a[1]", "result")
    assert encoded.notes == ("characters that are no text, replaced: result.a[0], result.a[1], result",)


def test_a_number_that_pydantic_would_lose_silently_is_named() -> None:
    row = Row(at=datetime(2024, 1, 2, tzinfo=UTC), free={"m": float("nan"), "d": Decimal("sNaN")})

    encoded = to_json([row], bytes_max=1000)

    assert isinstance(encoded, Encoded)
    assert orjson.loads(encoded.body)[0]["free"]["m"] is None
    assert orjson.loads(encoded.body)[0]["key"] == "**********"
    assert encoded.non_finite_paths == ("result[0].free.m", "result[0].free.d")


def test_only_the_first_changes_are_named() -> None:
    encoded = to_json([float("inf")] * 1000, bytes_max=100_000)

    assert isinstance(encoded, Encoded) and len(encoded.non_finite_paths) == 10
    assert encoded.body == orjson.dumps([None] * 1000)


# The processes


def test_a_child_is_a_light_process_of_its_own() -> None:
    told = value(asked("process"))

    assert told["pid"] == told["group"] == told["session"] != os.getpid()
    assert told["ignores_ctrl_c"] and told["path"] == sys.path
    assert told["pythonpath"] == os.environ.get("PYTHONPATH")
    assert told["heavy"] == ["asyncio"], "asyncio is imported by the tools; nothing else of these"


def test_children_are_started_when_needed_and_used_again() -> None:
    async def scene() -> None:
        async with opened(size=3) as pool:
            assert pool.stats.spawned == 0
            pids = {value(await call(pool, "pid")) for _ in range(5)}
            assert len(pids) == pool.stats.spawned == 1 and pool.stats.calls == 5

    asyncio.run(scene())


def test_a_child_is_replaced_after_its_calls() -> None:
    async def scene() -> list[int]:
        async with opened(calls_per_child_max=2) as pool:
            return [value(await call(pool, "pid")) for _ in range(4)]

    first, second, third, fourth = asyncio.run(scene())

    assert first == second != third == fourth


def test_more_callers_than_children_are_all_served_in_their_order() -> None:
    async def scene() -> list[int]:
        order: list[int] = []

        async def one(pool: ChildPool, number: int) -> None:
            assert value(await call(pool, "echo", value=number)) == number
            order.append(number)

        async with opened() as pool:
            await asyncio.gather(*(one(pool, number) for number in range(100)))
        return order

    assert asyncio.run(scene()) == list(range(100))


def test_children_work_at_the_same_time(tmp_path: Path) -> None:
    async def scene() -> None:
        gate = tmp_path / "gate"
        async with opened(size=4) as pool:
            notes = [tmp_path / f"note{n}" for n in range(4)]
            calls = [asyncio.create_task(call(pool, "waits", gate=str(gate), note=str(n))) for n in notes]
            pids = {await noted(n) for n in notes}
            gate.touch()
            assert {value(reply) for reply in await asyncio.gather(*calls)} == {"passed"}
            assert len(pids) == 4

    asyncio.run(scene())


def test_a_caller_that_waits_too_long_for_a_child_is_told(tmp_path: Path) -> None:
    async def scene() -> None:
        gate, note = tmp_path / "gate", tmp_path / "note"
        async with opened() as pool:
            first = asyncio.create_task(call(pool, "waits", gate=str(gate), note=str(note)))
            await noted(note)
            late = await pool.call(ChildJob(f"{TOOLS}:nothing", {}), timeout_s=ENOUGH_S, wait_s_max=0.05)
            assert isinstance(late, ChildDied) and (late.reason, late.began) == ("busy", False)
            gate.touch()
            assert value(await first) == "passed" and value(await call(pool, "nothing")) is None

    asyncio.run(scene())


def test_eight_kills_in_a_row_leave_a_pool_that_answers_twenty_calls() -> None:
    async def scene() -> None:
        async with opened(size=2) as pool:
            killed = await asyncio.gather(*(call(pool, "kills_itself") for _ in range(8)))
            assert all(isinstance(reply, ChildDied) and reply.signal == signal.SIGKILL for reply in killed)
            answers = await asyncio.gather(*(call(pool, "echo", value=n) for n in range(20)))
            assert [value(reply) for reply in answers] == list(range(20))
            assert pool.stats.died == 8

    asyncio.run(scene())


def test_a_child_that_is_killed_while_idle_is_replaced_unseen() -> None:
    async def scene() -> None:
        async with opened() as pool:
            first = value(await call(pool, "pid"))
            os.kill(first, signal.SIGKILL)
            await until(lambda: not pool._all)
            assert value(await call(pool, "pid")) != first
            assert pool.stats.died == 1

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows what a dead process has read")
def test_a_child_that_ends_before_it_reads_the_request_is_replaced_unseen() -> None:
    async def scene() -> None:
        async with opened() as pool:
            first = value(await call(pool, "pid"))
            os.kill(first, signal.SIGSTOP)
            await until(lambda: state(first) == "T")
            task = asyncio.create_task(call(pool, "pid"))
            (child,) = pool._all
            await until(lambda: child.began)
            os.kill(first, signal.SIGKILL)
            assert value(await task) != first

    asyncio.run(scene())


def test_what_children_print_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[bytes] = []

    async def scene() -> None:
        async with opened(on_output=heard.append) as pool:
            await call(pool, "prints", text="said on stdout")
            await call(pool, "prints_much")
            await until(lambda: b"said on stdout" in b"".join(heard))
            assert all(len(child.printed) <= child_pool.OUTPUT_TAIL_BYTES for child in pool._all)

    asyncio.run(scene())

    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is not kept elsewhere")
def test_memory_above_the_limit_is_an_exception_in_the_tool() -> None:
    async def scene() -> ChildReply:
        async with opened(address_space_bytes_max=1 << 30) as pool:
            return await call(pool, "takes_memory", size=1 << 31)

    reply = asyncio.run(scene())

    assert isinstance(reply, ChildRaised) and reply.error_type == "MemoryError"


# Nothing is left behind


@pytest.mark.parametrize("then", ["hang", "exit", "return"])
def test_what_a_tool_started_ends_with_its_child(tmp_path: Path, then: str) -> None:
    async def scene() -> None:
        note = tmp_path / "note"
        async with opened() as pool:
            await call(pool, "leaves_a_process", note=str(note), then=then, timeout_s=2.0)
            left = await noted(note)
        await until(lambda: not running(left))

    asyncio.run(scene())


def test_a_fork_that_holds_the_socket_does_not_hide_a_crash() -> None:
    reply = asked("forks_and_crashes")

    assert isinstance(reply, ChildDied) and reply.exit_code == 6


def test_a_fork_that_returns_too_does_not_answer() -> None:
    async def scene() -> list[Any]:
        async with opened() as pool:
            first = await call(pool, "forks_and_returns_twice")
            return [value(first), *[value(await call(pool, "echo", value=n)) for n in range(3)]]

    assert asyncio.run(scene()) == ["once", 0, 1, 2]


def test_a_cancelled_caller_ends_the_call(tmp_path: Path) -> None:
    async def scene() -> None:
        note = tmp_path / "note"
        async with opened() as pool:
            task = asyncio.create_task(call(pool, "hangs_and_swallows", note=str(note)))
            child = await noted(note)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not running(child))
            assert value(await call(pool, "nothing")) is None
            assert (pool.stats.died, pool.stats.timed_out) == (0, 0)

    asyncio.run(scene())


def test_a_caller_cancelled_while_it_waits_costs_no_place(tmp_path: Path) -> None:
    async def scene() -> None:
        gate, note = tmp_path / "gate", tmp_path / "note"
        async with opened() as pool:
            first = asyncio.create_task(call(pool, "waits", gate=str(gate), note=str(note)))
            await noted(note)
            second = asyncio.create_task(call(pool, "nothing"))
            await until(lambda: pool.stats.calls == 2)
            second.cancel()
            gate.touch()
            assert value(await first) == "passed"
            assert value(await call(pool, "nothing")) is None

    asyncio.run(scene())


def test_an_answer_that_arrives_with_its_cancellation_keeps_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        gate, note = tmp_path / "gate", tmp_path / "note"
        async with opened() as pool:
            before = value(await call(pool, "pid"))
            task = asyncio.create_task(call(pool, "waits", gate=str(gate), note=str(note)))
            await noted(note)
            settle = child_pool._settle

            def settle_and_cancel(child: Any, answer: Any) -> None:
                settle(child, answer)
                task.cancel()

            monkeypatch.setattr(child_pool, "_settle", settle_and_cancel)
            gate.touch()
            with pytest.raises(asyncio.CancelledError):
                await task
            monkeypatch.undo()
            assert value(await call(pool, "pid")) == before

    asyncio.run(scene())


def test_an_answer_that_is_there_at_the_deadline_counts() -> None:
    async def scene() -> None:
        async with opened() as pool:
            await call(pool, "nothing")
            (child,) = pool._all
            asyncio.get_running_loop().remove_reader(child.channel.fileno())  # a loop too busy to look
            task = asyncio.create_task(call(pool, "echo", value=1, timeout_s=1.0))
            assert value(await task) == 1
            assert pool.stats.timed_out == 0

    asyncio.run(scene())


def test_closing_kills_what_runs_and_answers_everybody(tmp_path: Path) -> None:
    async def scene() -> None:
        note = tmp_path / "note"
        async with opened() as pool:
            one = asyncio.create_task(call(pool, "hangs", note=str(note)))
            child = await noted(note)
            two = asyncio.create_task(call(pool, "nothing"))
            await until(lambda: pool.stats.calls == 2)
            await pool.aclose()
            assert not running(child)
            replies = [await one, await two, await call(pool, "nothing")]
            assert [r.reason for r in replies if isinstance(r, ChildDied)] == ["closed"] * 3
            assert [r.began for r in replies if isinstance(r, ChildDied)] == [True, False, False]

    asyncio.run(scene())


def test_closing_with_grace_lets_accepted_calls_finish(tmp_path: Path) -> None:
    async def scene() -> None:
        gate, note = tmp_path / "gate", tmp_path / "note"
        async with opened() as pool:
            calls = [
                asyncio.create_task(call(pool, "waits", gate=str(gate), note=str(note))) for _ in range(3)
            ]
            await noted(note)
            closing = asyncio.create_task(pool.aclose(grace_s=ENOUGH_S))
            gate.touch()
            assert [value(reply) for reply in await asyncio.gather(*calls)] == ["passed"] * 3
            await closing
            await pool.aclose(grace_s=ENOUGH_S)

    asyncio.run(scene())


PARENT = """
import asyncio, sys
from toolfleet.adapters.tools.child_pool import ChildJob, ChildPool

async def main():
    pool = ChildPool(size=2, setup=("tests.integration.child_tools",))
    def call(name, **arguments):
        return pool.call(ChildJob("tests.integration.child_tools:" + name, arguments), timeout_s=300)
    folder = sys.argv[1]
    await asyncio.gather(
        call("hangs_and_swallows", note=folder + "/child"),
        call("leaves_a_process", note=folder + "/grandchild", then="hang"),
    )

asyncio.run(main())
"""


def test_children_and_what_they_started_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    async def scene() -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        parent = subprocess.Popen(  # noqa: ASYNC220 - exec takes a millisecond
            [sys.executable, "-c", PARENT, str(tmp_path)], env=environment
        )
        try:
            pids = [await noted(tmp_path / "child"), await noted(tmp_path / "grandchild")]
            assert all(running(pid) for pid in pids)
        finally:
            parent.kill()
            parent.wait(SOON_S)
        await until(lambda: not any(running(pid) for pid in pids))

    asyncio.run(scene())


# Children that do not start


def scene_of_failed_starts(
    setup: str, **options: Any
) -> Callable[[Callable[[ChildPool], Coroutine[Any, Any, None]]], None]:
    def run(body: Callable[[ChildPool], Coroutine[Any, Any, None]]) -> None:
        async def scene() -> None:
            async with opened(setup=(setup,), **options) as pool:
                await body(pool)

        asyncio.run(scene())

    return run


def test_a_module_that_cannot_be_imported_is_a_clear_answer(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import a_package_nobody_has\n")

    async def body(pool: ChildPool) -> None:
        why = await pool.start()
        replies = await asyncio.gather(*(call(pool, "nothing") for _ in range(20)))
        for reply in [why, *replies]:
            assert isinstance(reply, ChildDied)
            assert (reply.reason, reply.began, reply.exit_code) == ("not_started", False, 1)
            assert "No module named 'a_package_nobody_has'" in reply.detail
        assert pool.stats.spawned < 10, "a crash loop is slowed down"

    scene_of_failed_starts(str(broken), size=2)(body)


def test_a_module_that_can_be_imported_again_is_used_again(tmp_path: Path) -> None:
    module = tmp_path / "mended.py"
    module.write_text("raise SystemExit(7)")

    async def body(pool: ChildPool) -> None:
        reply = await call(pool, "nothing")
        assert isinstance(reply, ChildDied) and "SystemExit: 7" in reply.detail
        module.write_text("")
        answered = False
        async with asyncio.timeout(SOON_S):
            while not answered:  # a pause of a tenth of a second, in which the answers come at once
                answered = isinstance(await call(pool, "nothing"), ChildReturned)
                await asyncio.sleep(0.01)

    scene_of_failed_starts(str(module))(body)


def test_a_module_that_hangs_at_import_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_pool, "HELLO_TIMEOUT_S", 0.5)
    module = tmp_path / "slow.py"
    module.write_text("import time; time.sleep(300)")

    async def body(pool: ChildPool) -> None:
        reply = await call(pool, "nothing")
        assert isinstance(reply, ChildDied) and (reply.reason, reply.began) == ("not_started", False)

    scene_of_failed_starts(str(module))(body)


def test_a_machine_that_starts_no_process_is_a_clear_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def body(pool: ChildPool) -> None:
        reply = await call(pool, "nothing")
        assert isinstance(reply, ChildDied) and (reply.reason, reply.began) == ("not_started", False)
        assert "/nonexistent/python" in reply.detail

    scene_of_failed_starts(TOOLS)(body)
