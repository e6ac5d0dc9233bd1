"""Pure rules of batches: who gets the free places, what an item came to, what a run for an item is."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from toolfleet.schemas.batches import PARKED_MAX, BatchStatus, ItemCode, ItemStatus
from toolfleet.schemas.ids import RunId, new_run_id
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import Lane, ReasonCode, RunStatus
from toolfleet.schemas.run import NewRun

ANSWERED = (RunStatus.COMPLETED, RunStatus.NEEDS_INPUT)


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that could use places: `at_work` items of it run, and it could begin `wanted` more."""

    batch_id: str
    tenant: str
    at_work: int
    wanted: int


def shares(claims: Sequence[Claim], free: int) -> dict[str, int]:
    """How many of the free places each batch gets: one at a time, to the tenant with the fewest items at work, and of
    its batches to the one with the fewest. What nobody of a tenant wants goes to the others."""
    of_tenant: dict[str, list[tuple[int, str, int]]] = {}
    working: dict[str, int] = {}
    for claim in claims:
        working[claim.tenant] = working.get(claim.tenant, 0) + claim.at_work
        if claim.wanted > 0:
            of_tenant.setdefault(claim.tenant, []).append((claim.at_work, claim.batch_id, claim.wanted))
    tenants = [(working[tenant], tenant) for tenant in of_tenant]
    heapq.heapify(tenants)
    for queue in of_tenant.values():
        heapq.heapify(queue)
    given: dict[str, int] = {}
    while free > 0 and tenants:
        busy, tenant = tenants[0]
        at_work, batch_id, wanted = of_tenant[tenant][0]
        given[batch_id] = given.get(batch_id, 0) + 1
        free -= 1
        if wanted > 1:
            heapq.heapreplace(of_tenant[tenant], (at_work + 1, batch_id, wanted - 1))
        else:
            heapq.heappop(of_tenant[tenant])
        if of_tenant[tenant]:
            heapq.heapreplace(tenants, (busy + 1, tenant))
        else:
            heapq.heappop(tenants)
    return given


def at_work(running: int, parked: int) -> int:
    """Items that hold a place: those that wait for people hold none, unless they are very many."""
    return running - min(parked, PARKED_MAX)


def item_end(run_status: str, reason: str | None, batch: BatchStatus) -> tuple[ItemStatus, str | None]:
    """What an item came to whose run has ended, and why it did not complete."""
    if run_status in ANSWERED:
        return ItemStatus.COMPLETED, None
    if run_status == RunStatus.CANCELLED:
        code = ItemCode.BATCH_CANCELLED if batch is BatchStatus.CANCELLING else ReasonCode.CANCELLED
        return ItemStatus.CANCELLED, code.value
    if reason == ReasonCode.DEADLINE:  # of the completion window: a line has none of its own
        return ItemStatus.EXPIRED, ItemCode.BATCH_EXPIRED.value
    return ItemStatus.FAILED, reason or run_status


def never_begun(batch: BatchStatus) -> tuple[ItemStatus, ItemCode] | None:
    """What becomes of the pending items of a batch that stops; None: it goes on."""
    match batch:
        case BatchStatus.CANCELLING:
            return ItemStatus.CANCELLED, ItemCode.BATCH_CANCELLED
        case BatchStatus.FINALIZING:
            return ItemStatus.EXPIRED, ItemCode.BATCH_EXPIRED
        case _:
            return None


def end_of(batch: BatchStatus) -> BatchStatus:
    """The terminal status of an open batch whose items have all ended."""
    match batch:
        case BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        case BatchStatus.FINALIZING:
            return BatchStatus.EXPIRED
        case _:
            return BatchStatus.COMPLETED


_KEPT = ("agent", "agent_version", "prompt_version", "toolset_version", "input", "context", "metadata")
_KEPT_TOO = ("reserve_usd", "principal", "permissions", "trace")


def request_of(new: NewRun) -> str:
    """What is stored of a line until it runs: JSON."""
    kept: dict[str, Any] = {name: getattr(new, name) for name in (*_KEPT, *_KEPT_TOO)}
    return orjson.dumps({**kept, "limits": new.limits.model_dump()}).decode()


def run_of(
    request: str, *, batch_id: str, custom_id: str, tenant: str, seconds: float, retry_of: str | None
) -> NewRun:
    """The run of an item, `seconds` before its batch expires. All tries of an item share one effect scope."""
    kept: Mapping[str, Any] = orjson.loads(request)
    run_id = new_run_id()
    fields = {name: kept[name] for name in (*_KEPT, "reserve_usd", "principal", "trace")}
    fields["metadata"] = {**kept["metadata"], "batch_id": batch_id, "custom_id": custom_id}
    return NewRun(
        **fields,
        run_id=run_id,
        limits=Limits(**kept["limits"]),
        lane=Lane.BATCH,
        tenant=tenant,
        permissions=tuple(kept["permissions"]),
        retry_of=None if retry_of is None else RunId(retry_of),
        correlation_id=run_id,
        deadline_s=seconds,
        effect_scope=f"{batch_id}/{custom_id}",
    )


def capped(new: NewRun, left_usd: float | None) -> NewRun | None:
    """The run, allowed to cost no more than what is left of its batch; None: not even its first model call fits."""
    if left_usd is None:
        return new
    if left_usd <= 0 or new.reserve_usd > left_usd:
        return None
    most = min(new.limits.cost_usd_max, left_usd)
    return replace(new, limits=new.limits.model_copy(update={"cost_usd_max": most}))
