"""Who gets the free places of batches, how fast a batch is, and what its lines look like."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from toolfleet.adapters.store.batch_rules import Claim, at_work, shares
from toolfleet.batching.answers import answer_line
from toolfleet.batching.bodies import CHAT, ENDPOINTS, RESPONSES
from toolfleet.batching.progress import Pace
from toolfleet.schemas.batches import (
    PARKED_MAX,
    BatchCounts,
    BatchItem,
    BatchLimits,
    BatchReport,
    BatchStatus,
    BatchUse,
    BatchView,
    ItemStatus,
)

CLAIMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 20)), max_size=8).map(
    lambda rows: [Claim(f"batch_{n}", tenant, busy, wanted) for n, (tenant, busy, wanted) in enumerate(rows)]
)


@given(CLAIMS, st.integers(0, 60))
def test_places_go_to_whoever_has_the_fewest(claims: list[Claim], free: int) -> None:
    given_ = shares(claims, free)

    wanted = {claim.batch_id: claim.wanted for claim in claims}
    assert all(0 < count <= wanted[batch] for batch, count in given_.items())
    assert sum(given_.values()) == min(free, sum(wanted.values())), "no place stays free that somebody wants"
    after = {c.batch_id: c.at_work + given_.get(c.batch_id, 0) for c in claims}
    for got in claims:
        for other in claims:
            hungry = given_.get(other.batch_id, 0) < other.wanted
            if got.tenant == other.tenant and given_.get(got.batch_id) and hungry:
                assert after[got.batch_id] <= after[other.batch_id] + 1
    busy = {t: sum(after[c.batch_id] for c in claims if c.tenant == t) for t in {c.tenant for c in claims}}
    served = {c.tenant for c in claims if given_.get(c.batch_id)}
    unserved = {c.tenant for c in claims if given_.get(c.batch_id, 0) < c.wanted}
    assert all(busy[one] <= busy[other] + 1 for one in served for other in unserved)


def test_items_that_wait_for_people_hold_no_place_unless_they_are_very_many() -> None:
    assert at_work(30, 10) == 20
    assert at_work(PARKED_MAX + 500, PARKED_MAX + 300) == 500


ITEM = BatchItem(
    line=3,
    custom_id="a\u2028b",
    status=ItemStatus.COMPLETED,
    agent="desk",
    run_id="run_0f",
    run_status="completed",
    output="said\u2029so",
    started_at=10.5,
    ended_at=12.0,
    input_tokens=7,
    output_tokens=2,
)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_completed_item_is_one_line_in_the_shape_of_its_endpoint(endpoint: str) -> None:
    written = answer_line(ITEM, endpoint)

    assert written.endswith(b"\n") and len(written.decode().splitlines()) == 1
    line = json.loads(written)
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert (line["custom_id"], line["error"]) == ("a\u2028b", None)
    response = line["response"]
    assert (response["status_code"], response["request_id"]) == (200, "run_0f")
    if endpoint == RESPONSES:
        assert Response.model_validate(response["body"], strict=False).output_text == "said\u2029so"
    elif endpoint == CHAT:
        (choice,) = ChatCompletion.model_validate(response["body"]).choices
        assert choice.message.content == "said\u2029so"
    else:
        assert response["body"]["output"] == "said\u2029so"


@pytest.mark.parametrize(
    ("changed", "status_code", "code"),
    [
        ({"run_id": None, "run_status": None, "status": ItemStatus.EXPIRED, "code": "batch_expired"}, None, "batch_expired"),
        ({"run_id": None, "run_status": None, "status": ItemStatus.CANCELLED, "code": "batch_cancelled"}, None, "batch_cancelled"),
        ({"run_status": "failed", "status": ItemStatus.FAILED, "code": "model_error"}, 500, "model_error"),
        ({"run_status": "limit_reached", "status": ItemStatus.FAILED, "code": "turns_max"}, 422, "turns_max"),
        ({"run_status": "denied", "status": ItemStatus.FAILED, "code": "permission_denied"}, 403, "permission_denied"),
    ],
)  # fmt: skip
def test_an_item_that_did_not_complete_says_why(
    changed: dict[str, object], status_code: int | None, code: str
) -> None:
    line = json.loads(answer_line(replace(ITEM, **changed), RESPONSES))  # type: ignore[arg-type]

    assert line["error"]["code"] == code and line["error"]["message"]
    if status_code is None:
        assert line["response"] is None
    else:
        assert line["response"]["status_code"] == status_code
        assert line["response"]["body"]["error"]["code"] == code


def test_a_structured_output_is_a_value_of_a_run() -> None:
    line = json.loads(answer_line(replace(ITEM, output='{"n":1}', structured=True), "/v1/runs"))

    assert line["response"]["body"]["output"] == {"n": 1}


def _report(now: float, ended: int, **over: object) -> BatchReport:
    counts = BatchCounts(pending=100 - ended, completed=ended)
    view = BatchView(
        "batch_1",
        "t",
        BatchStatus.IN_PROGRESS,
        "/v1/runs",
        counts,
        BatchLimits(),
        60.0,
        0.0,
        60.0,
        0.0,
        now_s=now,
    )
    return BatchReport(replace(view, **over), BatchUse(cost_usd=1.0, running_cost_usd=0.5), (), now)  # type: ignore[arg-type]


def test_a_rate_is_that_of_the_last_minute() -> None:
    pace = Pace()

    first = pace.seen(_report(10.0, 10))
    for now in range(20, 200, 10):
        pace.seen(_report(float(now), 10))
    later = pace.seen(_report(200.0, 40))

    assert (first.rate_per_s, first.eta_s, first.cost_usd) == (1.0, 90.0, 1.5)
    assert later.rate_per_s == pytest.approx(30 / 60) and later.eta_s == pytest.approx(120.0)


def test_nothing_is_said_of_what_stands_still() -> None:
    pace = Pace()
    pace.seen(_report(10.0, 10))

    assert pace.seen(_report(500.0, 10, paused="account")).eta_s is None
    assert Pace().seen(_report(0.0, 0)).rate_per_s is None
