"""The JSON shapes of batches, and their lines for people. Keys are stable: docs/cli.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolfleet.commands.terminal import iso, printable

if TYPE_CHECKING:
    from toolfleet.batching.progress import BatchProgress
    from toolfleet.schemas.batches import BatchFault, BatchReport, BatchView

COUNTS = ("pending", "running", "completed", "failed", "expired", "cancelled")
USED = ("cost_usd", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "model_calls")
SECONDS = ("queue_s", "model_s", "tool_s", "wait_s")


def view(one: BatchView) -> dict[str, Any]:
    return {
        "batch_id": one.batch_id,
        "tenant": one.tenant,
        "status": one.status.value,
        "paused": one.paused or None,
        "endpoint": one.endpoint,
        "file_name": one.file_name,
        "counts": {"total": one.counts.total, **{name: getattr(one.counts, name) for name in COUNTS}},
        "cost_usd_max": one.limits.cost_usd_max,
        "concurrency_max": one.limits.concurrency_max,
        "created_at": iso(one.created_at),
        "released_at": iso(one.released_at),
        "expires_at": iso(one.expires_at),
        "ended_at": iso(one.ended_at),
        "resumes": one.resumes,
        "ignored": dict(one.ignored),
        "errors": [fault(each) for each in one.faults],
        "metadata": dict(one.metadata),
    }


def fault(one: BatchFault) -> dict[str, Any]:
    return {
        "code": one.code,
        "line": one.line,
        "lines": list(one.lines),
        "message": one.message,
        "param": one.param,
    }


def fault_line(one: BatchFault) -> str:
    where = "file" if one.line is None else f"line {one.line}"
    return printable(f"{where}: {one.code}: {one.message}")


def report(one: BatchReport) -> dict[str, Any]:
    used = {name: getattr(one.use, name) for name in (*USED, "tool_calls", *SECONDS)}
    outcomes = [
        {"status": status.value, "code": code or None, "count": count} for status, code, count in one.outcomes
    ]
    return {"batch": view(one.view), "outcomes": outcomes, "used": used, "wall_s": one.wall_s}


def report_text(one: BatchReport) -> str:
    """The small report: what became of the lines, and what it took."""
    seen, use = one.view, one.use
    paused = f" (paused: {seen.paused})" if seen.paused else ""
    lines = [
        f"batch {seen.batch_id} is {seen.status.value}{paused}",
        f"requests  {seen.counts.total}: "
        + ", ".join(f"{getattr(seen.counts, name)} {name}" for name in COUNTS),
    ]
    lines += [
        f"  {count:>7}  {status.value}{f' ({code})' if code else ''}" for status, code, count in one.outcomes
    ]
    lines += [
        f"tokens    {use.input_tokens} in ({use.cached_tokens} cached), {use.output_tokens} out",
        f"cost      {use.cost_usd + use.running_cost_usd:.4f} US dollars",
        f"calls     {use.model_calls} of models, {use.tool_calls} of tools",
        "seconds   " + ", ".join(f"{getattr(use, name):.1f} {name.removesuffix('_s')}" for name in SECONDS)
        + f"; {one.wall_s:.1f} on the clock",
    ]  # fmt: skip
    lines += [f"ignored   {name} in {count} lines" for name, count in sorted(seen.ignored.items())]
    lines += [fault_line(each) for each in seen.faults]
    return "\n".join(lines)


def progress(one: BatchProgress) -> dict[str, Any]:
    return {
        "batch_id": one.view.batch_id,
        "status": one.view.status.value,
        "paused": one.view.paused or None,
        "counts": view(one.view)["counts"],
        "rate_per_s": one.rate_per_s,
        "eta_s": one.eta_s,
        "cost_usd": one.cost_usd,
    }


def progress_line(one: BatchProgress) -> str:
    counts = one.view.counts
    state = f"{one.view.status.value} (paused)" if one.view.paused else one.view.status.value
    rate = "" if one.rate_per_s is None else f"  {one.rate_per_s:.1f}/s"
    eta = "" if one.eta_s is None else f"  {_clock(one.eta_s)} left"
    failed = f"  {counts.not_completed} failed" if counts.not_completed else ""
    return f"{state}  {counts.ended}/{counts.total}{rate}{eta}{failed}  {one.cost_usd:.4f} USD"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
