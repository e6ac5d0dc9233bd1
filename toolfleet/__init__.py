"""toolfleet: a message-queue fleet of workers that runs tool-calling LLM agents durably.

Public names are loaded when they are used first; `import toolfleet` itself is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from toolfleet.version import __version__

if TYPE_CHECKING:
    from toolfleet.adapters.llm.anthropic_messages import AnthropicClient
    from toolfleet.adapters.llm.openai_chat import OpenAIChatClient, OpenAIResponsesClient
    from toolfleet.adapters.llm.scripted import Reply, ScriptedModel, call, calls, say
    from toolfleet.batching.front import Batches, BatchOptions
    from toolfleet.celery_tasks import celery_task_tool
    from toolfleet.client import CancelAck, RunRequest, RunResult
    from toolfleet.definitions import Tool, tool
    from toolfleet.fleet import Fleet, Run
    from toolfleet.narrowing import narrow
    from toolfleet.outputs import Decision, decision_output
    from toolfleet.schemas.agents import AgentSpec, ExampleCall, ExampleTurn, Price
    from toolfleet.schemas.batches import BatchLimits
    from toolfleet.schemas.context import ContextPolicy
    from toolfleet.schemas.contract import Prerequisite, ResultField, ToolExample
    from toolfleet.schemas.control import ControlPolicy, Narrowing, PolicyStep
    from toolfleet.schemas.effects import DidNotHappen, Happened, NoAnswer
    from toolfleet.schemas.errors import (
        BatchRefused,
        BusinessError,
        NotSent,
        PermissionDenied,
        Refused,
        Retryable,
        ToolError,
        ToolfleetError,
    )
    from toolfleet.schemas.limits import Limits
    from toolfleet.schemas.outcomes import CallOutcome, Lane, RunStatus, Tier
    from toolfleet.schemas.output import OutputSpec
    from toolfleet.schemas.tools import ToolContext
    from toolfleet.settings import Settings
    from toolfleet.signatures import From, Injected, Secret, Untrusted

__all__ = [
    "AgentSpec",
    "AnthropicClient",
    "BatchLimits",
    "BatchOptions",
    "BatchRefused",
    "Batches",
    "BusinessError",
    "CallOutcome",
    "CancelAck",
    "ContextPolicy",
    "ControlPolicy",
    "Decision",
    "DidNotHappen",
    "ExampleCall",
    "ExampleTurn",
    "Fleet",
    "From",
    "Happened",
    "Injected",
    "Lane",
    "Limits",
    "Narrowing",
    "NoAnswer",
    "NotSent",
    "OpenAIChatClient",
    "OpenAIResponsesClient",
    "OutputSpec",
    "PermissionDenied",
    "PolicyStep",
    "Prerequisite",
    "Price",
    "Refused",
    "Reply",
    "ResultField",
    "Retryable",
    "Run",
    "RunRequest",
    "RunResult",
    "RunStatus",
    "ScriptedModel",
    "Secret",
    "Settings",
    "Tier",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolExample",
    "ToolfleetError",
    "Untrusted",
    "__version__",
    "call",
    "calls",
    "celery_task_tool",
    "decision_output",
    "narrow",
    "say",
    "tool",
]

_HOMES = {
    "AgentSpec": "schemas.agents",
    "AnthropicClient": "adapters.llm.anthropic_messages",
    "BatchLimits": "schemas.batches",
    "BatchOptions": "batching.front",
    "BatchRefused": "schemas.errors",
    "Batches": "batching.front",
    "BusinessError": "schemas.errors",
    "CallOutcome": "schemas.outcomes",
    "CancelAck": "client",
    "ContextPolicy": "schemas.context",
    "ControlPolicy": "schemas.control",
    "Decision": "outputs",
    "DidNotHappen": "schemas.effects",
    "ExampleCall": "schemas.agents",
    "ExampleTurn": "schemas.agents",
    "Fleet": "fleet",
    "From": "signatures",
    "Happened": "schemas.effects",
    "Injected": "signatures",
    "Lane": "schemas.outcomes",
    "Limits": "schemas.limits",
    "Narrowing": "schemas.control",
    "NoAnswer": "schemas.effects",
    "NotSent": "schemas.errors",
    "OpenAIChatClient": "adapters.llm.openai_chat",
    "OpenAIResponsesClient": "adapters.llm.openai_chat",
    "OutputSpec": "schemas.output",
    "PermissionDenied": "schemas.errors",
    "PolicyStep": "schemas.control",
    "Prerequisite": "schemas.contract",
    "Price": "schemas.agents",
    "Refused": "schemas.errors",
    "Reply": "adapters.llm.scripted",
    "ResultField": "schemas.contract",
    "Retryable": "schemas.errors",
    "Run": "fleet",
    "RunRequest": "client",
    "RunResult": "client",
    "RunStatus": "schemas.outcomes",
    "ScriptedModel": "adapters.llm.scripted",
    "Secret": "signatures",
    "Settings": "settings",
    "Tier": "schemas.outcomes",
    "Tool": "definitions",
    "ToolContext": "schemas.tools",
    "ToolError": "schemas.errors",
    "ToolExample": "schemas.contract",
    "ToolfleetError": "schemas.errors",
    "Untrusted": "signatures",
    "call": "adapters.llm.scripted",
    "calls": "adapters.llm.scripted",
    "celery_task_tool": "celery_tasks",
    "decision_output": "outputs",
    "narrow": "narrowing",
    "say": "adapters.llm.scripted",
    "tool": "definitions",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolfleet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"toolfleet.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
