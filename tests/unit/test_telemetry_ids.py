"""Ids every process computes alike, and the headers of W3C Trace Context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet.adapters.telemetry import ids
from toolfleet.schemas.ids import RunId, call_id_of

RUN = RunId("run_0190b8f0")
TRACE = "629273e30b19f5caee190f137d7a2e92"
DECIDE = "d6dcd10ac17d3502"


def test_ids_are_the_same_in_every_process_and_release() -> None:
    """They are computed on both sides of a rolling deploy."""
    assert f"{ids.trace_id_of(RUN):032x}" == TRACE
    assert f"{ids.decide_span_id(RUN, 1):016x}" == DECIDE


def test_no_two_steps_of_a_run_have_one_id() -> None:
    found = [ids.submit_span_id(RUN)]
    for turn in range(1, 30):
        found += [ids.decide_span_id(RUN, turn), ids.merge_span_id(RUN, turn)]
        found += [ids.attempt_span_id(call_id_of(RUN, turn, i), n) for i in range(5) for n in range(1, 4)]

    assert len(set(found)) == len(found)


@given(trace_id=st.integers(1, 2**128 - 1), span_id=st.integers(1, 2**64 - 1), sampled=st.booleans())
def test_a_trace_context_survives_its_headers(trace_id: int, span_id: int, sampled: bool) -> None:
    made = ids.Traceparent(trace_id, span_id, sampled, "vendor=1")

    assert ids.read(made.headers()) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more",
        f"00-{'A' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01\n",
    ],
)
def test_what_is_no_trace_context_is_ignored(text: str) -> None:
    assert ids.read({ids.TRACEPARENT: text}) is None


def test_a_later_version_may_append_fields() -> None:
    found = ids.read({ids.TRACEPARENT: f"01-{'1' * 32}-{'2' * 16}-03-more"})

    assert found is not None and found.sampled
