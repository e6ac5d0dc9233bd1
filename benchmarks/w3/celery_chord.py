"""The same work as people build it with Celery: a task that asks the model, a chord of tool tasks, the same task again.

    celery -A benchmarks.w3.celery_chord:app worker -P prefork -c 2
    python -m benchmarks.w3.celery_chord      the driver: commands as lines of JSON, as benchmarks.w3.driver

Redis is broker and result backend, acks are late, the conversation travels in the messages. Nothing is kept in a
database, nothing is leased or signed, and a worker that dies between the answer and the chord asks the model again:
it does less than a fleet.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any, Final

import redis
from celery import Celery, chord
from openai import OpenAI

from benchmarks.w3.shape import (
    DESCRIPTIONS,
    FINAL_TEXT,
    INSTRUCTIONS,
    MODEL,
    TOOL_NAMES,
    Shape,
    result,
    schema,
)

REDIS: Final = os.environ.get("W3_REDIS", "redis://127.0.0.1:6379/0")
ENDED: Final = "w3:ended"  # a list: one entry for each run that ended
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": schema()}}
    for name, text in zip(TOOL_NAMES, DESCRIPTIONS, strict=True)
]

app = Celery("w3", broker=REDIS, backend=REDIS)
app.conf.update(
    task_acks_late=True,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    result_expires=3600,
    worker_prefetch_multiplier=4,
)


@functools.cache
def model() -> OpenAI:
    """One client for each process of the pool, so that connections are kept."""
    return OpenAI()


@functools.cache
def ended() -> Any:
    return redis.Redis.from_url(REDIS)


@app.task(name="w3.decide")
def decide(results: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """One model turn; `results` are the tool messages of the turn before, in the order of its calls."""
    messages = messages + results
    reply = model().chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)  # type: ignore[call-overload]
    message = reply.choices[0].message
    if not message.tool_calls:
        ended().rpush(ENDED, json.dumps({"text": message.content, "at": time.time()}))
        return
    messages.append(message.model_dump(exclude_none=True))
    called = [look_up.s(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    chord(called)(decide.s(messages))


@app.task(name="w3.look_up")
def look_up(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Any of the tools: they differ in their names only."""
    given = json.loads(arguments)
    if given["ms"]:
        time.sleep(given["ms"] / 1000)
    return {"role": "tool", "tool_call_id": call_id, "content": json.dumps({"data": result(given["key"])})}


def submit(shape: Shape, n: int) -> None:
    for number in range(n):
        first = {"role": "system", "content": INSTRUCTIONS}
        decide.delay([], [first, {"role": "user", "content": shape.text(number)}])


def batch(shape: Shape, *, n: int, limit_s: float) -> dict[str, Any]:
    """n runs at once. Seconds from before the submit to the end of each."""
    began_at = time.time()
    submit(shape, n)
    submitted_s = time.time() - began_at
    seconds = []
    while len(seconds) < n:
        found = ended().blpop([ENDED], timeout=2)
        if found is not None:
            told = json.loads(found[1])
            assert told["text"] == FINAL_TEXT, told
            seconds.append(told["at"] - began_at)
        elif time.time() - began_at > limit_s:
            raise TimeoutError(f"{len(seconds)} of {n} runs ended in {limit_s:g} s")
    seconds.sort()
    return {
        "wall_s": seconds[-1],
        "seen_s": time.time() - began_at,
        "submit_s": submitted_s,
        "seconds": seconds,
    }


def single(shape: Shape, *, n: int, limit_s: float) -> dict[str, Any]:
    """One run after the other: until its end was written, and until the driver had read it."""
    stored, waited = [], []
    for _ in range(n):
        began_at = time.time()
        told = batch(shape, n=1, limit_s=limit_s)
        waited.append(time.time() - began_at)
        stored += told["seconds"]
    return {"seconds": sorted(stored), "waited_s": sorted(waited)}


def ready(limit_s: float) -> dict[str, Any]:
    """Once a worker answers."""
    began_at = time.time()
    while not app.control.ping(timeout=0.5):
        if time.time() - began_at > limit_s:
            raise TimeoutError(f"no worker answered in {limit_s:g} s")
    return {}


def answer(command: dict[str, Any]) -> dict[str, Any]:
    shape = Shape(**command.get("shape", {}))
    match command["op"]:
        case "batch":
            return batch(shape, n=command["n"], limit_s=command["limit_s"])
        case "single":
            return single(shape, n=command["n"], limit_s=command["limit_s"])
        case "ready":
            return ready(command["limit_s"])
        case unknown:
            raise ValueError(unknown)


def main() -> None:
    """Tasks are those of the imported module, not of `__main__`: their names are given."""
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception as exc:  # noqa: BLE001 - whoever asked is told, and decides
            told = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
