"""The golden replay: out of a recorded answer and the outputs of its tools, our adapters build the next request.

What a client is free to choose (model, tools, what may be called, what the user said next) is read off the recorded
request and given to the adapter as its input; what has to follow from the answer (the turn as it goes back, its ids,
its results, their places and order) is ours. Then the two requests are compared: only the order of keys is forgiven.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.corpus.cases import Case
from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.profiles import ANTHROPIC, GENERIC, OPENAI_RESPONSES, Profile, profile_for
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem, Item, ItemResult, MergeItem, UserItem
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelReply, ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import item_calls, propose

ABSENT = "<absent>"
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
LISTS = {"chat_completions": "messages", "messages": "messages", "responses": "input"}
OF_THE_ADAPTER = {
    *("model", "messages", "input", "system", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
    *("temperature", "stream", "stream_options", "store", "previous_response_id", "include", "n", *LIMITS),
}
RUN = RunId("run_golden")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where our request is not the recorded one. `step` is that of the recorded answer."""

    step: int
    path: str
    ours: Any
    recorded: Any


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the turn of an answer stands in the next request: list[:start] was before it, list[end:] came after."""

    start: int
    end: int
    results: list[tuple[str, str, bool]]  # (id, text, whether it is an error), in recorded order
    after: list[dict[str, Any]]


def replayed(case: Case) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(step, our request, the recorded one) of every answer with calls whose results stand in the next request."""
    steps = case["steps"]
    host = case["hosts"][0]
    for step in range(len(steps) - 1):
        recorded = steps[step + 1]["request"]
        answer = steps[step]["response"]
        if steps[step]["status"] != 200 or not isinstance(recorded, dict):
            continue
        profile = _profile(case["api"], host, recorded)
        raw = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        headers = {"content-type": "text/event-stream"} if isinstance(answer, str) else {}
        reply = WIRES[profile.wire].parse(Answer(raw, host, "m", headers))
        turn = _turn(case["api"], recorded, reply) if reply.calls else None
        turn = turn or _said(case["api"], steps[step]["request"], recorded, reply)
        if turn is not None:
            yield step, _built(profile, recorded, reply, turn), recorded


def differences(case: Case) -> list[Difference]:
    return [
        Difference(step, path, ours, theirs)
        for step, built, recorded in replayed(case)
        for path, ours, theirs in _compared("", built, recorded)
    ]


def _profile(api: str, host: str, recorded: Mapping[str, Any]) -> Profile:
    """The profile of the server, with the settings the recorded client had chosen."""
    known = profile_for(f"https://{host}")
    stream: dict[str, Any] = {"stream": bool(recorded.get("stream"))}
    stream["stream_usage"] = "stream_options" in recorded
    functions = [tool.get("function", tool) for tool in recorded.get("tools", ())]
    if not functions or not all(function.get("strict") for function in functions if "name" in function):
        stream["strict"] = None
    match api:
        case "messages":
            return replace(known if known.wire == api else ANTHROPIC, cache_marks=False, **stream)
        case "responses":
            return replace(
                OPENAI_RESPONSES,
                stored=recorded.get("store", True),
                by_previous_id=bool(recorded.get("previous_response_id")),
                encrypted_reasoning="reasoning.encrypted_content" in recorded.get("include", ()),
                **stream,
            )
        case _:
            first = recorded["messages"][0]["role"]
            role = first if first in ("system", "developer") else known.instructions_role
            return replace(known if known.wire == api else GENERIC, instructions_role=role, **stream)


def _turn(api: str, recorded: Mapping[str, Any], reply: ModelReply) -> Turn | None:
    entries = recorded[LISTS[api]]
    if not isinstance(entries, list):
        return None
    return {"chat_completions": _chat_turn, "responses": _response_turn, "messages": _message_turn}[api](
        entries, reply
    )


def _said(api: str, before: Any, recorded: Mapping[str, Any], reply: ModelReply) -> Turn | None:
    """The turn of an answer without calls: what the next request has behind everything this one had."""
    asked = before.get(LISTS[api]) if isinstance(before, dict) else None
    asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    entries = recorded[LISTS[api]]
    if (
        reply.calls
        or not isinstance(asked, list)
        or not isinstance(entries, list)
        or entries[: len(asked)] != asked
    ):
        return None
    start = end = len(asked)
    while end < len(entries) and entries[end].get("role") not in ("user", "system", "developer", "tool"):
        end += 1
    return Turn(start, end, [], entries[end:]) if start < end < len(entries) else None


def _chat_turn(entries: list[dict[str, Any]], reply: ModelReply) -> Turn | None:
    places = [
        place
        for place, entry in enumerate(entries)
        if entry["role"] == "assistant" and entry.get("tool_calls")
    ]
    ids = [call.provider_id for call in reply.calls]
    same = [place for place in places if [call["id"] for call in entries[place]["tool_calls"]] == ids]
    places = same or [place for place in places if len(entries[place]["tool_calls"]) == len(ids)]
    if not places:
        return None
    start = end = places[-1]
    results = []
    for entry in entries[start + 1 :]:
        if entry["role"] != "tool":
            break
        results.append((entry["tool_call_id"], _plain(entry["content"]), False))
        end += 1
    return Turn(start, end + 1, results, entries[end + 1 :]) if results else None


def _response_turn(entries: list[dict[str, Any]], reply: ModelReply) -> Turn | None:
    ids = [call.provider_id for call in reply.calls]
    outputs = [
        place for place, entry in enumerate(entries) if entry.get("call_id") in ids and _is_output(entry)
    ]
    if not outputs:
        return None
    results = [(entries[place]["call_id"], _plain(entries[place]["output"]), False) for place in outputs]
    start = outputs[0]
    own = {item.get("type") for item in reply.provider["output"]} | {None}
    while start > 0 and entries[start - 1].get("type") in own and entries[start - 1].get("role") != "user":
        start -= 1
    return Turn(start, outputs[-1] + 1, results, entries[outputs[-1] + 1 :])


def _is_output(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("type")).endswith("_output")


def _message_turn(entries: list[dict[str, Any]], reply: ModelReply) -> Turn | None:
    ids = [call.provider_id for call in reply.calls]
    for place, entry in enumerate(entries):
        blocks = entry["content"] if isinstance(entry["content"], list) else []
        if any(block.get("tool_use_id") in ids for block in blocks) and entry["role"] == "user":
            of_calls = [block for block in blocks if block.get("type") == "tool_result"]
            results = [
                (block["tool_use_id"], _plain(block["content"]), bool(block.get("is_error")))
                for block in of_calls
            ]
            rest = [block for block in blocks if block.get("type") != "tool_result"]
            after = [{"role": "user", "content": rest}] if rest else []
            return Turn(place - 1, place + 1, results, after + entries[place + 1 :])
    return None


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return (
        "".join(part.get("text", "") for part in content)
        if isinstance(content, list)
        else json.dumps(content)
    )


def _built(profile: Profile, recorded: dict[str, Any], reply: ModelReply, turn: Turn) -> dict[str, Any]:
    entries = list(recorded[LISTS[profile.wire]])
    instructions, skipped = _instructions(profile, recorded)
    tools, others = _tools(recorded)
    choice, allowed, parallel = _choice(recorded)
    options = {key: value for key, value in recorded.items() if key not in OF_THE_ADAPTER}
    more = [one for one in recorded.get("include", ()) if one != "reasoning.encrypted_content"]
    if more:
        options["include"] = more
    agent = AgentSpec(
        name="golden",
        model=recorded["model"],
        instructions=instructions,
        tools=tools,
        temperature=recorded.get("temperature"),
        provider_options={**options, **({"tools": others} if others else {})},
    )
    calls = item_calls(propose(reply, _knowing(reply), RUN, 1, None), RUN, 1)
    texts = {wire_id: (text, failed) for wire_id, text, failed in turn.results}
    by_place = len(texts) == len(calls) and not texts.keys() & {call.wire_id for call in calls}
    results = []
    for call, (_, text, failed) in zip(calls, turn.results, strict=False):
        if not by_place:
            text, failed = texts[call.wire_id]
        outcome = CallOutcome.FAILED if failed else CallOutcome.OK
        results.append(ItemResult(call.call_id, call.wire_id, outcome, text))
    items: list[Item] = [_verbatim(profile, entry) for entry in entries[skipped : turn.start]]
    items.append(AssistantItem(reply.text, calls, wire=reply.wire, provider=reply.provider))
    if results:
        items.append(MergeItem(tuple(results)))
    items.extend(_verbatim(profile, entry) for entry in turn.after)
    request = ModelRequest(
        agent,
        tuple(items),
        tools,
        allowed=allowed,
        tool_choice=choice,
        parallel=parallel,
        output_tokens_max=next((recorded[key] for key in LIMITS if key in recorded), 4096),
    )
    built: dict[str, Any] = json.loads(WIRES[profile.wire].renderer(profile).render(request))
    return built


def _knowing(reply: ModelReply) -> AgentSpec:
    """An agent that takes every call of the reply: whether it may be made is not asked here."""
    anything = {"type": "object", "additionalProperties": True}
    names = sorted({call.name for call in reply.calls})
    tools = tuple(ToolSpec(name=name, description="d", parameters=anything) for name in names)
    return AgentSpec(name="golden", model="m", tools=tools)


def _verbatim(profile: Profile, entry: dict[str, Any]) -> UserItem:
    return UserItem("", wire=profile.wire, provider=entry)


def _instructions(profile: Profile, recorded: Mapping[str, Any]) -> tuple[str, int]:
    """The instructions, and how many entries of the list they take."""
    if profile.wire == "messages":
        return _plain(recorded.get("system", "")), 0
    if profile.wire == "responses":
        return recorded.get("instructions") or "", 0
    first = recorded["messages"][0]
    if first["role"] in ("system", "developer") and isinstance(first["content"], str):
        return first["content"], 1
    return "", 0


def _tools(recorded: Mapping[str, Any]) -> tuple[tuple[ToolSpec, ...], list[dict[str, Any]]]:
    """Functions as our tools, and the provider's own."""
    ours: list[ToolSpec] = []
    others: list[dict[str, Any]] = []
    for tool in recorded.get("tools", ()):
        function = tool.get("function", tool)
        parameters = function.get("parameters", function.get("input_schema"))
        if (
            tool.get("type", "function") in ("function", "custom")
            and isinstance(parameters, dict)
            and not others
        ):
            described = function.get("description") or ""
            ours.append(ToolSpec(name=function["name"], description=described, parameters=parameters))
        else:
            others.append(tool)
    return tuple(ours), others


def _choice(recorded: Mapping[str, Any]) -> tuple[str, tuple[str, ...] | None, bool]:
    """(tool_choice, allowed, parallel) as our policy would have given them."""
    given = recorded.get("tool_choice", "auto")
    parallel = recorded.get("parallel_tool_calls", True)
    if isinstance(given, str):
        return ("required" if given == "any" else given), None, parallel
    parallel = parallel and not given.get("disable_parallel_tool_use", False)
    match given["type"]:
        case "function" | "tool":
            return given.get("name") or given["function"]["name"], None, parallel
        case "allowed_tools":
            inner = given.get("allowed_tools", given)
            names = tuple(tool.get("name") or tool["function"]["name"] for tool in inner["tools"])
            return inner["mode"], names, parallel
        case kind:
            return {"any": "required"}.get(kind, kind), None, parallel


def _compared(path: str, ours: Any, recorded: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(recorded, dict):
        for key in sorted(ours.keys() | recorded.keys()):
            yield from _compared(f"{path}/{key}", ours.get(key, ABSENT), recorded.get(key, ABSENT))
    elif isinstance(ours, list) and isinstance(recorded, list):
        for place, (one, other) in enumerate(_paired(ours, recorded)):
            yield from _compared(f"{path}/{place}", one, other)
    elif ours != recorded or type(ours) is not type(recorded):
        yield path, ours, recorded


def _paired(ours: list[Any], recorded: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The elements side by side; one that only one of the lists has stands alone, so that the others keep their places."""
    kinds = [[_kind(element) for element in elements] for elements in (ours, recorded)]
    if len(ours) == len(recorded) or not any(isinstance(element, dict) for element in ours):
        kinds = [["same"] * len(elements) for elements in (ours, recorded)]
    for tag, a, b, c, d in SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
        for place in range(max(b - a, d - c)):
            one = ours[a + place] if a + place < b else ABSENT
            other = recorded[c + place] if c + place < d else ABSENT
            assert tag != "equal" or ABSENT not in (one, other)
            yield one, other


def _kind(element: Any) -> str:
    if not isinstance(element, dict):
        return repr(element)
    return repr([element.get(key) for key in ("type", "role", "call_id", "tool_call_id", "tool_use_id")])


@dataclass(frozen=True, slots=True)
class Row:
    """One allowed difference. `file` (wire/host/path of the cassette), `step` and `path` may hold `*`.

    `ours` and `recorded` are the values, or one of: <absent>, <any text>, <any>, <same json> (another spelling of the
    same JSON), <as one text> (the same text as the only part of a list).
    """

    file: str
    step: str
    path: str
    ours: Any
    recorded: Any
    reason: str

    def allows(self, file: str, difference: Difference) -> bool:
        return (
            fnmatchcase(file, self.file)
            and fnmatchcase(str(difference.step), self.step)
            and fnmatchcase(difference.path, self.path)
            and _fits(self.ours, difference.ours, difference.recorded)
            and _fits(self.recorded, difference.recorded, difference.ours)
        )


def rows() -> list[Row]:
    lines = (Path(__file__).parent / "golden_rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [Row(**json.loads(line)) for line in lines]


def file_of(case: Case) -> str:
    return f"{case['api']}/{case['hosts'][0]}/{case['source']['path']}"


def _fits(told: Any, value: Any, other: Any) -> bool:
    match told:
        case "<any>":
            return bool(value != ABSENT)
        case "<any text>":
            return isinstance(value, str) and value != ABSENT
        case "<same json>":
            try:
                return (
                    isinstance(value, str)
                    and isinstance(other, str)
                    and json.loads(value) == json.loads(other)
                )
            except ValueError:
                return False
        case "<as one text>":
            return isinstance(value, list) and len(value) <= 1 and _plain(value) == other
        case "<text with an image>":
            kinds = {part.get("type") for part in value} if isinstance(value, list) else set()
            return "image_url" in kinds and _plain(value) == other
        case _:
            return bool(told == value and type(told) is type(value))
