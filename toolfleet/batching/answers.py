"""The lines of a batch's answer files: one for each line of the input that has ended, in the shape of the OpenAI Batch API.

`{id, custom_id, response: {status_code, request_id, body} | null, error: {code, message} | null}`. The body has the
shape of the endpoint the batch was for. Completed items are in the output file, all others in the error file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from toolfleet.batching.bodies import CHAT, RESPONSES, RUNS
from toolfleet.batching.lines import json_line
from toolfleet.schemas.batches import BatchItem, ItemCode, ItemStatus
from toolfleet.schemas.outcomes import RunStatus

# What an HTTP front would answer to a run that ended so.
STATUS_CODES: Final[Mapping[str, int]] = {
    RunStatus.COMPLETED: 200,
    RunStatus.NEEDS_INPUT: 200,
    RunStatus.LIMIT_REACHED: 422,
    RunStatus.DENIED: 403,
    RunStatus.CANCELLED: 409,
    RunStatus.FAILED: 500,
}
RUN_ERASED: Final = "run_erased"
SENTENCES: Final[Mapping[str, str]] = {
    ItemCode.BATCH_EXPIRED: "the completion window of the batch was over before this request was done",
    ItemCode.BATCH_CANCELLED: "the batch was cancelled before this request was done",
    ItemCode.BATCH_COST_LIMIT: "the cost limit of the batch left nothing for this request",
    "quota": "the account of the model's provider has nothing left",
    "auth": "the model's provider refused the key",
    RUN_ERASED: "the run of this request was erased",
}


def answer_line(item: BatchItem, endpoint: str) -> bytes:
    """One line, its end included."""
    ident = f"batch_req_{(item.run_id or item.custom_id).removeprefix('run_')}"
    completed = item.status is ItemStatus.COMPLETED and item.run_status is not None
    code = item.code or (item.status.value if item.run_status is not None else RUN_ERASED)
    message = SENTENCES.get(code, f"the run ended as {item.run_status} ({code})")
    response = None
    if item.run_status is not None:
        body = BODIES[endpoint](item) if completed else _error_body(item, code, message)
        status = STATUS_CODES.get(item.run_status, 500)
        response = {"status_code": status, "request_id": item.run_id, "body": body}
    line = {
        "id": ident,
        "custom_id": item.custom_id,
        "response": response,
        "error": None if completed else {"code": code, "message": message},
    }
    return json_line(orjson.dumps(line))


def _ours(item: BatchItem) -> dict[str, Any]:
    """What the wires have no place for."""
    return {
        "run_id": item.run_id,
        "turns": item.turns,
        "model_calls": item.model_calls,
        "tool_calls": item.tool_calls,
        "cost_usd": item.cost_usd,
    }


def _run(item: BatchItem) -> dict[str, Any]:
    output = json.loads(item.output) if item.structured and item.output is not None else item.output
    usage = {
        name: getattr(item, name)
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    }
    return {
        "object": "run",
        "agent": item.agent,
        "status": item.run_status,
        "output": output,
        **_ours(item),
    } | usage


def _response(item: BatchItem) -> dict[str, Any]:
    hexes = str(item.run_id).removeprefix("run_")
    part = {"type": "output_text", "text": item.output or "", "annotations": [], "logprobs": []}
    message = {
        "id": f"msg_{hexes}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": f"resp_{hexes}",
        "object": "response",
        "created_at": _whole(item.started_at),
        "completed_at": _whole(item.ended_at),
        "status": "completed",
        "model": item.agent,
        "output": [message],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": item.input_tokens,
            "input_tokens_details": {"cached_tokens": item.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": item.output_tokens,
            "output_tokens_details": {"reasoning_tokens": item.reasoning_tokens},
            "total_tokens": item.input_tokens + item.output_tokens,
        },
        "toolfleet": _ours(item),
    }


def _completion(item: BatchItem) -> dict[str, Any]:
    message = {"role": "assistant", "content": item.output or "", "refusal": None}
    return {
        "id": f"chatcmpl-{str(item.run_id).removeprefix('run_')}",
        "object": "chat.completion",
        "created": _whole(item.started_at),
        "model": item.agent,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": item.input_tokens,
            "prompt_tokens_details": {"cached_tokens": item.cached_tokens},
            "completion_tokens": item.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": item.reasoning_tokens},
            "total_tokens": item.input_tokens + item.output_tokens,
        },
        "toolfleet": _ours(item),
    }


def _error_body(item: BatchItem, code: str, message: str) -> dict[str, Any]:
    """With what the run had come to: of a limit that is the partial answer."""
    error = {"message": message, "type": item.run_status, "param": None, "code": code}
    return {"error": error, "output": item.output, "toolfleet": _ours(item)}


def _whole(at: float | None) -> int:
    return 0 if at is None else int(at)


BODIES: Final[Mapping[str, Callable[[BatchItem], dict[str, Any]]]] = {
    RUNS: _run,
    RESPONSES: _response,
    CHAT: _completion,
}
