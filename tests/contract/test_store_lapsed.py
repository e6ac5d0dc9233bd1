"""What granted a call, asked again in every store when it is used: revoked, narrowed, ended, and what still holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    command_ids,
    each_store,
    over_every_store,
    play,
    proposed,
    replied,
    state_of,
)
from toolfleet.schemas.access import Key, Scope
from toolfleet.schemas.effects import ApprovalStatus, Audit, StandingApproval, Terms, arguments_hash
from toolfleet.schemas.events import ApprovalDecided, ApprovalRequested, EffectClaimed
from toolfleet.schemas.ids import CommandId, new_token
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import Applied
from toolfleet.schemas.run import CallState

pytestmark = over_every_store
open_bench = each_store

EVERYTHING = Key(
    "key_1", "ann", scopes=(Scope.APPROVE,), tenants=("*",), tools=("*",), tiers=("*",), grants=()
)
SAID = Audit("standing_add", True, "added", "ann")


async def _asked(bench: Bench, standing: str | None = None) -> tuple[CallState, CommandId]:
    new, token = await bench.deciding()
    (made,) = proposed(1, effect=True)
    made = replace(made, tier=Tier.HIGH, terms=Terms(asks=True))
    applied = await bench.apply(new.run_id, replied(new.run_id, 1, token, (made,)))
    (row,), call = command_ids(applied), state_of(applied).calls[0]
    hash_ = arguments_hash(call.arguments)
    question = ApprovalRequested(row, None, hash_, 900.0, "eve", "", standing)
    asked = state_of(await bench.apply(new.run_id, question)).calls[0]
    if standing is None:
        assert asked.approval is not None
        said = ApprovalDecided(call.call_id, asked.approval.id, "approve", "ann", hash_)
        asked = state_of(await bench.apply(new.run_id, said)).calls[0]
    assert asked.approval is not None and asked.approval.status is ApprovalStatus.GRANTED
    return asked, row


async def _claimed(bench: Bench, call: CallState, row: CommandId) -> Applied:
    run = next(one.run_id for one in await bench.store.approvals(limit=9, status=None))
    hash_ = arguments_hash(call.arguments)
    return await bench.apply(run, EffectClaimed(row, new_token(), "w", 30.0, "key", hash_))


async def _reasons(bench: Bench) -> list[str]:
    return [one.reason for one in await bench.store.audits(limit=20) if one.action == "claim"]


@pytest.mark.parametrize("standing", [False, True])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("nothing", ""),
        ("revoked", "approver_revoked"),
        ("narrowed", "approver_narrowed"),
        ("rotated", ""),
        ("another key of the name", ""),
    ],
)
def test_who_granted_a_call_has_to_be_in_force_when_it_is_sent(
    open_bench: OpenBench, tmp_path: Path, standing: bool, change: str, why: str
) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.add_key(EVERYTHING, "hash_1")
        if standing:
            rule = StandingApproval("std_1", "default", "look_up", {}, bench.clock.now + 900.0, "ann")
            await bench.store.add_standing(rule, SAID)
        call, row = await _asked(bench, "std_1" if standing else None)
        if change in ("revoked", "narrowed", "another key of the name"):
            await bench.store.revoke_key("key_1")
        if change == "narrowed":
            await bench.store.add_key(replace(EVERYTHING, id="key_2", tools=("send",)), "hash_2")
        if change == "another key of the name":
            await bench.store.add_key(replace(EVERYTHING, id="key_2"), "hash_2")
        if change == "rotated":
            await bench.store.rotate_key("key_1", replace(EVERYTHING, id="key_2"), "hash_2", overlap_s=0.0)

        after = state_of(await _claimed(bench, call, row)).calls[0]

        assert after.dispatched == (not why)
        assert await _reasons(bench) == ([why] if why else [])
        views = await bench.store.approvals(limit=9, status=None)
        wanted = ApprovalStatus.WITHDRAWN if why else ApprovalStatus.GRANTED
        assert [view.approval.status for view in views] == [wanted]

    play(story, open_bench, tmp_path)


def test_a_standing_approval_that_ended_meanwhile_sends_nothing(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        rule = StandingApproval("std_1", "default", "look_up", {}, bench.clock.now + 900.0, "ann")
        await bench.store.add_standing(rule, SAID)
        call, row = await _asked(bench, "std_1")
        assert await bench.store.end_standing("std_1", replace(SAID, action="standing_end"))

        after = state_of(await _claimed(bench, call, row)).calls[0]

        assert not after.dispatched and after.open
        assert await _reasons(bench) == ["standing_ended"]

    play(story, open_bench, tmp_path)


def test_a_key_that_expired_still_stands_for_a_yes_and_not_for_a_standing_approval(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.add_key(replace(EVERYTHING, expires_at=bench.clock.now + 50.0), "hash_1")
        call, row = await _asked(bench)
        bench.clock.now += 60.0

        after = state_of(await _claimed(bench, call, row)).calls[0]

        assert after.dispatched and await _reasons(bench) == []

    play(story, open_bench, tmp_path)
