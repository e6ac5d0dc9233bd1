"""Spans of the embedded fleet, received by a collector over OTLP/HTTP: one trace a run, and the facts of every step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import get_current_span

from tests.integration.otlp_collector import Collector, Span, collecting
from toolfleet import Fleet, Limits, Price, RunRequest, ScriptedModel, ToolContext, call, calls, say, tool
from toolfleet.adapters.telemetry import names as n
from toolfleet.adapters.telemetry.export import QUEUE_FULL, SpanQueue
from toolfleet.settings import load_settings

WAIT_S = 60.0
SECRET = "tok-4711-do-not-show"
PROMPT = "prompt-4712-do-not-show"
RESULT = "result-4713-do-not-show"


@tool
async def look_up(order: int) -> dict[str, str]:
    """Look an order up."""
    return {"order": str(order), "text": RESULT}


@tool
async def whoami(ctx: ToolContext, name: str) -> str:
    """Use what was injected."""
    assert ctx.context["tenant_token"] == SECRET
    return f"hello {name}"


@tool
async def current() -> str:
    """Say which span is the current one, as any instrumented library would find it."""
    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}/{context.span_id:016x}"


@tool(attempts_max=2)
async def shaky(ctx: ToolContext) -> str:
    """Fail once in passing."""
    if ctx.attempt == 1:
        raise ConnectionError("gone")
    return "there"


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] != "user":
        return say("done")
    match messages[-1]["content"]:
        case "mixed":
            return calls(call("look_up", order=1), call("look_up", order="x"), call("nobody"))
        case "shaky":
            return call("shaky")
        case "current":
            return call("current")
        case "whoami":
            return call("whoami", name="Ann")
        case _:
            return calls(*(call("look_up", order=i) for i in range(3)))


def _fleet(tmp_path: Path, **settings: Any) -> Fleet:
    made = Fleet(
        model=ScriptedModel(_script),
        settings=load_settings(database=f"sqlite:///{tmp_path / 'fleet.db'}", **settings),
    )
    made.agent("desk", model="scripted", tools=[look_up, whoami, shaky, current], instructions=PROMPT)
    made.agent("dear", model="scripted", price=Price(input_usd=1.0, output_usd=1.0))
    return made


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


def _traced(tmp_path: Path, collector: Collector, **settings: Any) -> Fleet:
    return _fleet(tmp_path, otlp_endpoint=collector.url, **settings)


def _of(collector: Collector, run_id: str) -> dict[str, list[Span]]:
    """The spans of a run, by step, those that began first going first."""
    found: dict[str, list[Span]] = {}
    for span in sorted(collector.spans, key=lambda one: one.started_ns):
        if span.attributes.get(n.RUN) == run_id:
            found.setdefault(span.step, []).append(span)
    return found


# B093
def test_a_run_of_two_turns_is_one_trace_with_parents_and_links(tmp_path: Path, collector: Collector) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "three")
        assert run.wait(timeout_s=WAIT_S).ok

    spans = _of(collector, run.id)
    (submit,), (merge,) = spans[n.SUBMIT], spans[n.MERGE]
    first, second = spans[n.DECIDE]
    assert {span.trace_id for of_step in spans.values() for span in of_step} == {submit.trace_id}
    assert submit.parent_id == "" and {first.parent_id, second.parent_id} == {submit.span_id}
    assert [chat.parent_id for chat in spans[n.CHAT]] == [first.span_id, second.span_id]
    assert [span.parent_id for span in spans[n.EXECUTE_TOOL]] == [first.span_id] * 3
    assert merge.parent_id == first.span_id
    assert sorted(merge.links) == sorted((span.trace_id, span.span_id) for span in spans[n.EXECUTE_TOOL])
    assert first.links == () and second.links == ((merge.trace_id, merge.span_id),)
    assert len({span.span_id for of_step in spans.values() for span in of_step}) == 9


def test_spans_carry_the_facts_of_the_step_rows(tmp_path: Path, collector: Collector) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "three")
        run.wait(timeout_s=WAIT_S)
        client = fleet.client()
        view = fleet._run(client.get(run.id))
        steps = fleet._run(client.store.steps(run.id))

    spans = _of(collector, run.id)
    for row, span in zip([s for s in steps if s.kind == "decide"], spans[n.DECIDE], strict=True):
        found = span.attributes
        assert (found[n.TURN], found[n.OUTCOME], found[n.ATTEMPT]) == (row.turn, row.outcome, row.attempt)
        for name, of_row in (
            (n.INPUT_TOKENS, "input_tokens"),
            (n.COST_USD, "cost_usd"),
            (n.MODEL_S, "model_s"),
        ):
            assert found[name] == row.fields[of_row]
        assert found[n.PROMPT_VERSION] == view.info.prompt_version
        assert found[n.TOOLSET_VERSION] == view.info.toolset_version
        assert found[n.CORRELATION] == view.info.correlation_id
        assert found[n.TOOL_BAND] == row.fields["tool_band"] == "fine"
        assert (
            found[n.ALLOWED_TOOLS] == ["look_up", "whoami", "shaky", "current"]
            and found[n.TOOL_CHOICE] == "auto"
        )
    calls_of_run = {s.call_id: s for s in steps if s.kind == "call"}
    for span in spans[n.EXECUTE_TOOL]:
        row = calls_of_run[span.attributes[n.TOOL_CALL_ID]]
        assert (span.attributes[n.TOOL_NAME], span.attributes[n.OUTCOME]) == ("look_up", "ok")
        assert span.attributes[n.TOOL_S] == row.fields["tool_s"]
    ended = spans[n.DECIDE][-1].attributes
    used = view.state.counters
    assert (ended[n.RUN_STATUS], ended[n.RUN_MODEL_CALLS], ended[n.RUN_TOOL_CALLS]) == ("completed", 2, 3)
    assert (ended[n.RUN_INPUT_TOKENS], ended[n.RUN_COST_USD]) == (used.input_tokens, used.cost_usd)
    assert [span.kind for span in spans[n.CHAT]] == [3, 3]  # SPAN_KIND_CLIENT


def test_calls_that_are_answered_without_being_run_have_spans_and_no_names_of_the_model(
    tmp_path: Path, collector: Collector
) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "mixed")
        run.wait(timeout_s=WAIT_S)

    spans = _of(collector, run.id)
    answered = {span.attributes[n.OUTCOME]: span for span in spans[n.ANSWER_CALL]}
    assert set(answered) == {"invalid_arguments", "unknown_tool"}
    assert n.TOOL_NAME not in answered["unknown_tool"].attributes
    linked = {span_id for _, span_id in spans[n.MERGE][0].links}
    assert linked == {span.span_id for span in (*spans[n.ANSWER_CALL], *spans[n.EXECUTE_TOOL])}


def test_each_attempt_of_a_call_is_a_span_and_the_merge_links_to_all(
    tmp_path: Path, collector: Collector
) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "shaky")
        assert run.wait(timeout_s=WAIT_S).ok

    spans = _of(collector, run.id)
    first, second = spans[n.EXECUTE_TOOL]
    assert [first.attributes[n.OUTCOME], second.attributes[n.OUTCOME]] == [n.RETRY_DUE, "ok"]
    assert first.failed and not second.failed and first.attributes[n.WAIT_S] >= 0
    assert {span_id for _, span_id in spans[n.MERGE][0].links} == {first.span_id, second.span_id}


# B097
def test_injected_parameters_and_content_are_nowhere_in_what_is_exported(
    tmp_path: Path, collector: Collector
) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "whoami", context={"tenant_token": SECRET})
        assert run.wait(timeout_s=WAIT_S).ok
        fleet.submit("desk", "three").wait(timeout_s=WAIT_S)

    everything = b"".join(collector.raw)
    assert _of(collector, run.id)[n.EXECUTE_TOOL][0].attributes[n.TOOL_NAME] == "whoami"
    for hidden in (SECRET, PROMPT, RESULT, "tenant_token"):
        assert hidden.encode() not in everything


# B097
def test_content_is_exported_where_it_is_asked_for_and_injected_context_never(tmp_path: Path) -> None:
    with collecting() as collector:
        with _traced(tmp_path, collector, trace_content="on") as fleet:
            run = fleet.submit("desk", "whoami", context={"tenant_token": SECRET})
            assert run.wait(timeout_s=WAIT_S).ok

        spans = _of(collector, run.id)
        (attempt,) = spans[n.EXECUTE_TOOL]
        assert attempt.attributes[n.TOOL_ARGUMENTS] == '{"name":"Ann"}'
        assert "hello Ann" in attempt.attributes[n.TOOL_RESULT]
        assert PROMPT in spans[n.CHAT][0].attributes[n.SYSTEM_INSTRUCTIONS]
        assert "whoami" in spans[n.CHAT][0].attributes[n.OUTPUT_MESSAGES]
        assert SECRET.encode() not in b"".join(collector.raw)


def test_a_run_joins_the_trace_of_its_caller(tmp_path: Path, collector: Collector) -> None:
    tracer = TracerProvider(id_generator=RandomIdGenerator()).get_tracer("the caller's program")
    with _traced(tmp_path, collector) as fleet:
        with tracer.start_as_current_span("request") as span:
            ours = span.get_span_context()
            joined = fleet.submit("desk", "three")
            several = fleet.submit_many([RunRequest("desk", "three"), RunRequest("desk", "three")])
        named = fleet.submit("desk", "three", trace={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        for run in (joined, named, *several):
            run.wait(timeout_s=WAIT_S)

    caller = f"{ours.trace_id:032x}", f"{ours.span_id:016x}"
    (submit,) = _of(collector, joined.id)[n.SUBMIT]
    assert (submit.trace_id, submit.parent_id) == caller
    (submit,) = _of(collector, named.id)[n.SUBMIT]
    assert (submit.trace_id, submit.parent_id) == ("ab" * 16, "cd" * 8)
    of_batch = [_of(collector, run.id)[n.SUBMIT][0] for run in several]
    assert len({span.trace_id for span in of_batch} | {caller[0]}) == 3
    assert [span.links for span in of_batch] == [(caller,), (caller,)]


def test_a_run_that_ends_by_a_limit_before_its_model_call_says_so(
    tmp_path: Path, collector: Collector
) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "three", limits=Limits(active_seconds_max=1e-9))
        run.wait(timeout_s=WAIT_S)
        dear = fleet.submit("dear", "three", limits=Limits(cost_usd_max=0.0))
        assert dear.wait(timeout_s=WAIT_S).reason == "cost_usd_max"

    assert _of(collector, run.id)[n.MERGE][0].attributes[n.RUN_STATUS] == "limit_reached"
    (ended,) = _of(collector, dear.id)[n.DECIDE]
    assert ended.attributes[n.OUTCOME] == "cost_usd_max" and n.CHAT not in _of(collector, dear.id)


def test_what_a_tool_records_lies_under_its_attempt(tmp_path: Path, collector: Collector) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "current")
        assert run.wait(timeout_s=WAIT_S).ok
        (result,) = fleet.wait(run).results

    (attempt,) = _of(collector, run.id)[n.EXECUTE_TOOL]
    assert f"{attempt.trace_id}/{attempt.span_id}" in result.content


def test_a_caller_that_does_not_sample_gets_no_spans_of_the_run(tmp_path: Path, collector: Collector) -> None:
    with _traced(tmp_path, collector) as fleet:
        run = fleet.submit("desk", "three", trace={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-00"})
        assert run.wait(timeout_s=WAIT_S).ok

    assert _of(collector, run.id) == {}


def test_a_run_that_was_submitted_without_traces_gets_one_trace_all_the_same(
    tmp_path: Path, collector: Collector
) -> None:
    with _fleet(tmp_path) as plain:
        plain.client()
    untraced = _fleet(tmp_path)
    run = untraced.submit("desk", "three")
    untraced.stop()
    with _traced(tmp_path, collector) as fleet:
        assert fleet.wait(run.id, timeout_s=WAIT_S).ok

    spans = _of(collector, run.id)
    first, second = spans[n.DECIDE]
    assert n.SUBMIT not in spans and first.parent_id == "" and second.parent_id == first.span_id
    assert len({span.trace_id for of_step in spans.values() for span in of_step}) == 1


def test_a_known_idempotency_key_makes_no_second_submit_span(tmp_path: Path, collector: Collector) -> None:
    with _traced(tmp_path, collector) as fleet:
        first = fleet.submit("desk", "three", idempotency_key="k")
        again = fleet.submit("desk", "three", idempotency_key="k")
        first.wait(timeout_s=WAIT_S)

    assert first.id == again.id and len(_of(collector, first.id)[n.SUBMIT]) == 1


def test_runs_do_not_wait_for_a_collector_that_does_not_answer(tmp_path: Path) -> None:
    with collecting() as collector:
        collector.held = True
        with _traced(tmp_path, collector, spans_batch=1, spans_max=4) as fleet:
            spans = _spans_of(fleet)
            runs = [fleet.submit("desk", "three") for _ in range(3)]
            assert all(run.wait(timeout_s=WAIT_S).ok for run in runs)
            collector.wait(lambda arrived: len(arrived) > 0)
            assert collector.held and spans.counts.dropped[QUEUE_FULL] >= 27 - 4 - 2
            collector.answer()

        assert spans.counts.exported + sum(spans.counts.dropped.values()) == 27


def test_every_span_is_counted_as_dropped_where_there_is_no_collector(tmp_path: Path) -> None:
    with _fleet(tmp_path, otlp_endpoint="http://127.0.0.1:9", spans_batch=5) as fleet:
        spans = _spans_of(fleet)
        runs = [fleet.submit("desk", "three") for _ in range(5)]
        assert all(run.wait(timeout_s=WAIT_S).ok for run in runs)

    assert spans.counts.exported == 0 and sum(spans.counts.dropped.values()) == 45


def _spans_of(fleet: Fleet) -> SpanQueue:
    assert fleet._workers is not None and fleet._workers.instruments.spans is not None
    return fleet._workers.instruments.spans


def test_nothing_of_telemetry_is_loaded_where_it_is_off(tmp_path: Path) -> None:
    code = (
        "import sys; from toolfleet import Fleet, ScriptedModel, say\n"
        f"fleet = Fleet('sqlite:///{tmp_path / 'off.db'}', model=ScriptedModel([say('hi')]))\n"
        "fleet.agent('a', model='scripted')\n"
        "with fleet: assert fleet.submit('a', 'x').wait(timeout_s=60).ok\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'prometheus_client')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=90
    )

    assert done.stdout.strip() == "[]", done.stdout + done.stderr
