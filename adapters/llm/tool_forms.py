"""The tools of a request in the form of one provider, and the way back of what the model writes for them.

Where a profile has strict schemas, a tool is sent in its strict form; one that has none is sent as it was declared, and
costs the others nothing. Outside this module names and arguments are always the tool's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolfleet.adapters.llm.profiles import Profile
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.tool import StrictTool, strict_tools
from toolfleet.schemas.model import ModelReply, RawCall
from toolfleet.schemas.tool_text import model_description, model_parameters
from toolfleet.schemas.tools import ToolSpec


@dataclass(frozen=True, slots=True)
class Form:
    """One tool as it is sent."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool


@dataclass(frozen=True, slots=True)
class ToolForms:
    """All tools of a request, in their order."""

    forms: tuple[Form, ...]
    strict: Mapping[str, StrictTool] = field(default_factory=dict)  # by the tool's own name

    def sent_name(self, name: str) -> str:
        tool = self.strict.get(name)
        return name if tool is None else tool.name

    def sent_arguments(self, name: str, arguments: str) -> str:
        """Stored arguments as the model would write them."""
        tool = self.strict.get(name)
        return arguments if tool is None else tool.encode_text(arguments)

    def restored(self, reply: ModelReply) -> ModelReply:
        """The reply with names and arguments as the tools declared them; what the provider sent stays in `provider`."""
        if not self.strict or not reply.calls:
            return reply
        tools = {tool.name: tool for tool in self.strict.values()}
        calls = []
        for call in reply.calls:
            tool = tools.get(call.name)
            if tool is None:
                calls.append(call)
                continue
            arguments = None if call.arguments is None else tool.restore_text(call.arguments)
            calls.append(RawCall(call.provider_id, tool.tool, arguments))
        return replace(reply, calls=tuple(calls))


PLAIN = ToolForms(())


def forms_of(tools: Sequence[ToolSpec], profile: Profile) -> ToolForms:
    """The tools as that server is sent them."""
    if profile.strict is None:
        return ToolForms(tuple(_as_declared(tool) for tool in tools))
    wanted = [tool for tool in tools if tool.strict != "never"]
    found = strict_tools(wanted, strict_profile(profile.strict))
    strict = {one.tool: one for one in found if isinstance(one, StrictTool)}
    forms = [
        Form(strict[spec.name].name, model_description(spec), strict[spec.name].parameters, True)
        if spec.name in strict
        else _as_declared(spec)
        for spec in tools
    ]
    return ToolForms(tuple(forms), strict)


def _as_declared(tool: ToolSpec) -> Form:
    return Form(tool.name, model_description(tool), model_parameters(tool), False)
