"""What is known of the servers that speak Chat Completions, as data with its source and date.

A profile is chosen by the host of the base URL. What is not listed gets GENERIC: the parameters every compatible
server has taken from the first day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class ChatProfile:
    """How one provider wants a Chat Completions request."""

    name: str
    instructions_role: str = "system"  # "developer" only exists at OpenAI, which takes "system" as the same
    output_limit: str = "max_tokens"
    user: str = "user"
    user_chars_max: int = 512
    allowed_tools: bool = False  # tool_choice of type allowed_tools
    not_parallel_models: tuple[str, ...] = ()  # beginnings of models that refuse parallel_tool_calls


GENERIC: Final = ChatProfile("generic")

# OpenAI's API description 2.3.0 (openai-openapi f85dbe2, 2025): max_tokens and user are deprecated in favour of
# max_completion_tokens and safety_identifier (at most 64 characters); o-series models answer 400 to max_tokens and to
# parallel_tool_calls, whatever its value.
OPENAI: Final = ChatProfile(
    "openai",
    output_limit="max_completion_tokens",
    user="safety_identifier",
    user_chars_max=64,
    allowed_tools=True,
    not_parallel_models=("o1", "o3", "o4"),
)

# Azure takes max_completion_tokens in all its current API versions; `user` is its only name for the person, and
# allowed_tools is not in its reference.
AZURE: Final = ChatProfile(
    "azure", output_limit="max_completion_tokens", not_parallel_models=("o1", "o3", "o4")
)


def profile_for(base_url: str) -> ChatProfile:
    """The profile of the server at that base URL."""
    host = (urlsplit(base_url).hostname or "").lower()
    if host == "api.openai.com" or host.endswith(".api.openai.com"):
        return OPENAI
    if host.endswith((".openai.azure.com", ".services.ai.azure.com")):
        return AZURE
    return GENERIC
