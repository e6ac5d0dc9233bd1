"""A model that is a Python function or a list of replies: for tests, examples and a first try without a key.

It is asked with what a real server would be sent, rendered and read back, so that a script sees the same messages;
and what it says goes through the same parser. Deterministic: the same conversation gets the same reply, in whatever
process and however often it is asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from toolfleet.adapters.llm.answers import BYTES_PER_TOKEN, Answer
from toolfleet.adapters.llm.chat_parse import parse_reply
from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.strict_json import dumps
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

HOST: Final = "scripted-model"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a scripted reply. `arguments` may be a text, to play a model that writes no JSON."""

    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says: text, calls, or both."""

    text: str | None = None
    calls: tuple[Call, ...] = ()
    finish: str | None = None  # as a server would call it; by default what the content says


Script = Callable[[list[dict[str, Any]], list[dict[str, Any]]], "str | Reply | Awaitable[str | Reply]"]


def say(text: str) -> Reply:
    """The model answers with text."""
    return Reply(text)


def call(name: str, /, **arguments: Any) -> Reply:
    """The model calls one tool."""
    return Reply(calls=(Call(name, arguments),))


def calls(*replies: Reply) -> Reply:
    """The model calls several tools in one turn: `calls(call("a"), call("b", n=1))`."""
    return Reply(calls=tuple(one for reply in replies for one in reply.calls))


class ScriptedModel:
    """A ModelClient that plays a script.

    A function is given messages and tools as a Chat Completions server gets them. Of a list, the reply after n replies
    of the conversation is number n; asked for more than there are, it fails (`bad_request`). `Reply` and text are both
    replies. A function may raise ModelError to play a server's fault.
    """

    def __init__(self, script: Script | Sequence[str | Reply]) -> None:
        self._script = script
        self._renderer = ChatRenderer()
        self._prices = PriceTable()
        self.requests = 0  # asked so far, for tests

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.requests += 1
        content = self._renderer.render(request)
        reply = await self._reply(request, content)
        reply = Reply(reply) if isinstance(reply, str) else reply
        said = sum(isinstance(item, AssistantItem) for item in request.items)
        body = dumps(_body(request.agent.model, reply, said, len(content)))
        return parse_reply(Answer(body, HOST, request.agent.model))

    def render(self, request: ModelRequest) -> bytes:
        return self._renderer.render(request)

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._prices.cost_usd(agent, usage)

    async def aclose(self) -> None:
        """Holds nothing."""

    async def _reply(self, request: ModelRequest, content: bytes) -> str | Reply:
        if callable(self._script):
            body = orjson.loads(content)
            reply = self._script(body["messages"], body.get("tools", []))
            return await reply if inspect.isawaitable(reply) else reply
        said = sum(isinstance(item, AssistantItem) and not item.by_runtime for item in request.items)
        if said >= len(self._script):
            message = f"the script has {len(self._script)} replies and was asked for number {said + 1}."
            raise ModelError(ModelFault("bad_request", message, retryable=False))
        return self._script[said]


def _body(model: str, reply: Reply, said: int, request_bytes: int) -> dict[str, Any]:
    """The answer a server would send. Ids are unique in the conversation, and the same at every repetition."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{said}_{index}",
                "type": "function",
                "function": {
                    "name": one.name,
                    "arguments": one.arguments
                    if isinstance(one.arguments, str)
                    else dumps(one.arguments).decode(),
                },
            }
            for index, one in enumerate(reply.calls)
        ]
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    return {
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 1 + request_bytes // BYTES_PER_TOKEN,
            "completion_tokens": 1 + len(dumps(message)) // BYTES_PER_TOKEN,
        },
    }
