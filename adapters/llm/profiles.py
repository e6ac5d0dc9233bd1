"""What is known of model servers, as data with its source and date: one profile for each.

A profile is chosen by name (`model="groq:..."`) or by the host of the base URL. What is not listed gets GENERIC: the
parameters every server of that wire has taken from the first day. Nothing else in the adapters asks who the server is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

Wire = Literal["chat_completions", "responses", "messages"]

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How one server wants to be asked, and what it needs back. `source` and `checked`: where that is written, when."""

    name: str
    wire: Wire = "chat_completions"
    base_url: str | None = None
    hosts: tuple[str, ...] = ()  # host names; one that begins with a dot stands for everything below it
    key_env: str | None = None  # the variable its own client takes the key from; None: it needs none
    source: str = ""
    checked: str = ""  # the day it was looked up, or what it rests on until somebody does

    instructions_role: str = "system"  # "developer" only exists at OpenAI, which takes "system" as the same
    output_limit: str = "max_tokens"
    user: str | None = "user"
    user_chars_max: int = 512
    name_chars_max: int = 64  # of a tool

    tool_choices: tuple[str, ...] = ("auto", "required", "none", "function")  # the others are asked as auto
    allowed_tools: bool = False  # it can be told which of the tools may be called now
    parallel: bool = True  # it takes parallel_tool_calls (Anthropic: disable_parallel_tool_use)
    not_parallel_models: tuple[str, ...] = ()  # beginnings of models that refuse parallel_tool_calls
    no_sampling_models: tuple[str, ...] = ()  # beginnings of models that refuse temperature and top_p
    strict: Literal["openai", "anthropic"] | None = None  # whose strict schemas of tools it enforces
    output_schema: bool = (
        False  # it enforces the shape of the answer; else the shape is told in the system text
    )
    narrowing_cheaper: bool = False  # sends only the allowed definitions: no cache of its own makes them free
    cache_key: bool = False  # prompt_cache_key
    cache_marks: bool = False  # Anthropic: cache_control, without which nothing is cached

    call_ids: Literal["any", "safe", "nine"] = (
        "any"  # safe: letters, digits, _ and -; nine: nine letters and digits
    )
    reasoning_sent: tuple[str, ...] = ()  # fields of a reply with calls that have to go back with them
    reasoning_demanded: tuple[
        str, ...
    ] = ()  # of those, fields it misses (400) where a reply with calls has none
    reasoning_filler: str = ""  # what stands in such a field where there is nothing to send back
    unsent: tuple[str, ...] = (
        "annotations",
        "audio",
        "executed_tools",
    )  # fields of a reply it refuses in a request
    null_content: bool = True  # takes content: null beside calls

    stored: bool = (
        False  # Responses: the server keeps what was said, so that items may go back by their ids alone
    )
    by_previous_id: bool = (
        False  # Responses: only what is new is sent, with previous_response_id; needs `stored`
    )
    encrypted_reasoning: bool = False  # Responses: reasoning can be asked for in a form that may be sent back
    stream: bool = False  # asks for a stream, which is read to its end: for servers that answer slowly
    done_mark: bool = True  # its streams end with [DONE]
    stream_usage: bool = True  # it takes stream_options.include_usage


GENERIC: Final = Profile(
    name="generic", reasoning_sent=("reasoning_content", "reasoning", "reasoning_details")
)
_O_SERIES: Final = ("o1", "o3", "o4")

# max_tokens and user are deprecated in favour of max_completion_tokens and safety_identifier (at most 64 characters);
# o-series models answer 400 to max_tokens and to parallel_tool_calls, whatever its value.
OPENAI: Final = Profile(
    name="openai",
    base_url=DEFAULT_BASE_URL,
    hosts=("api.openai.com", ".api.openai.com"),
    key_env="OPENAI_API_KEY",
    source="openai-openapi f85dbe2 (API description 2.3.0)",
    checked="2026-11-30",
    output_limit="max_completion_tokens",
    user="safety_identifier",
    user_chars_max=64,
    allowed_tools=True,
    not_parallel_models=_O_SERIES,
    no_sampling_models=(*_O_SERIES, "gpt-5"),
    strict="openai",
    output_schema=True,
    cache_key=True,
)
# store=false and encrypted reasoning: nothing of a conversation has to be kept by the provider.
OPENAI_RESPONSES: Final = Profile(
    name="openai-responses",
    wire="responses",
    base_url=DEFAULT_BASE_URL,
    key_env="OPENAI_API_KEY",
    source="openai-openapi f85dbe2 (API description 2.3.0)",
    checked="2026-11-30",
    output_limit="max_output_tokens",
    user="safety_identifier",
    user_chars_max=64,
    allowed_tools=True,
    no_sampling_models=(*_O_SERIES, "gpt-5"),
    strict="openai",
    output_schema=True,
    cache_key=True,
    encrypted_reasoning=True,
)
# `user` is its only name for the person, and allowed_tools is not in its reference.
AZURE: Final = Profile(
    name="azure",
    hosts=(".openai.azure.com", ".services.ai.azure.com"),
    key_env="AZURE_OPENAI_API_KEY",
    source="learn.microsoft.com/azure/ai-foundry/openai/reference-preview-latest",
    checked="recorded traffic only",
    output_limit="max_completion_tokens",
    not_parallel_models=_O_SERIES,
    no_sampling_models=(*_O_SERIES, "gpt-5"),
    strict="openai",
    output_schema=True,
)
# Ids of calls match ^[a-zA-Z0-9_-]+$; nothing is cached without cache_control.
ANTHROPIC: Final = Profile(
    name="anthropic",
    wire="messages",
    base_url="https://api.anthropic.com/v1",
    hosts=("api.anthropic.com",),
    key_env="ANTHROPIC_API_KEY",
    source="platform.claude.com/docs/en/api/messages, anthropic 2.14 (types)",
    checked="2026-11-30",
    user="user_id",
    user_chars_max=256,
    name_chars_max=128,
    tool_choices=("auto", "required", "none", "function"),
    strict="anthropic",
    output_schema=True,
    cache_marks=True,
    call_ids="safe",
)
# With tools in thinking mode every reply with calls has to come back with its reasoning_content, an empty one
# included ("must be passed back": 400).
DEEPSEEK: Final = Profile(
    name="deepseek",
    base_url="https://api.deepseek.com/v1",
    hosts=("api.deepseek.com",),
    key_env="DEEPSEEK_API_KEY",
    source="api-docs.deepseek.com/guides/thinking_mode",
    checked="2026-11-30",
    user=None,
    parallel=False,
    reasoning_sent=("reasoning_content",),
    reasoning_demanded=("reasoning_content",),
)
# "Tool call id was ... but must be a-z, A-Z, 0-9, with a length of 9"; fields it does not know are refused (422).
# Thinking stands in the parts of the content, which goes back as it is.
MISTRAL: Final = Profile(
    name="mistral",
    base_url="https://api.mistral.ai/v1",
    hosts=("api.mistral.ai",),
    key_env="MISTRAL_API_KEY",
    source="docs.mistral.ai/api, github.com/langchain-ai/langchain/pull/24668",
    checked="2026-11-30",
    user=None,
    output_schema=True,
    call_ids="nine",
    stream_usage=False,
)
GROQ: Final = Profile(
    name="groq",
    base_url="https://api.groq.com/openai/v1",
    hosts=("api.groq.com",),
    key_env="GROQ_API_KEY",
    source="console.groq.com/docs/openai, console.groq.com/docs/reasoning",
    checked="recorded traffic only",
    output_limit="max_completion_tokens",
    output_schema=True,
    reasoning_sent=("reasoning",),
)
# reasoning_details carries signatures of the provider behind it, which refuses the conversation without them.
OPENROUTER: Final = Profile(
    name="openrouter",
    base_url="https://openrouter.ai/api/v1",
    hosts=("openrouter.ai",),
    key_env="OPENROUTER_API_KEY",
    source="openrouter.ai/docs/use-cases/reasoning-tokens",
    checked="recorded traffic only",
    output_limit="max_completion_tokens",
    output_schema=True,
    reasoning_sent=("reasoning_details",),
)
# tool_choice is taken and does nothing on most models; parallel_tool_calls is not in its list of fields.
OLLAMA: Final = Profile(
    name="ollama",
    base_url="http://127.0.0.1:11434/v1",
    hosts=("ollama.com",),
    key_env="OLLAMA_API_KEY",
    source="docs.ollama.com/api/openai-compatibility",
    checked="2026-11-30",
    user=None,
    parallel=False,
    output_schema=True,
    reasoning_sent=("reasoning",),
)
# It takes every tool_choice since 0.8.3 and parallel_tool_calls, and ignores `user`; what a reply thought is in
# `reasoning` (older ones: `reasoning_content`).
VLLM: Final = Profile(
    name="vllm",
    base_url="http://127.0.0.1:8000/v1",
    source="vllm d5dba2d (entrypoints/openai/chat_completion/protocol.py), docs.vllm.ai/en/v0.10.1.1/features/tool_calling",
    checked="2026-11-30",
    output_limit="max_completion_tokens",
    user=None,
    output_schema=True,
    reasoning_sent=("reasoning_content", "reasoning"),
)
# Signatures of thoughts stand in extra_content of the calls, which go back with them; ids of calls may be empty.
GEMINI: Final = Profile(
    name="gemini",
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    hosts=("generativelanguage.googleapis.com",),
    key_env="GEMINI_API_KEY",
    source="ai.google.dev/gemini-api/docs/openai, ai.google.dev/gemini-api/docs/thought-signatures",
    checked="recorded traffic only",
    user=None,
    parallel=False,
    output_schema=True,
)
XAI: Final = Profile(
    name="xai",
    base_url="https://api.x.ai/v1",
    hosts=("api.x.ai",),
    key_env="XAI_API_KEY",
    source="docs.x.ai/developers/advanced-api-usage/troubleshooting-reasoning",
    checked="2026-11-30",
    output_schema=True,
    reasoning_sent=("reasoning_content",),
)
XAI_RESPONSES: Final = Profile(
    name="xai-responses",
    wire="responses",
    base_url="https://api.x.ai/v1",
    key_env="XAI_API_KEY",
    source="docs.x.ai/developers/advanced-api-usage/troubleshooting-reasoning",
    checked="2026-11-30",
    output_limit="max_output_tokens",
    output_schema=True,
    encrypted_reasoning=True,
)
# While it thinks, it answers 400 to tool_choice required or a function, and to a reply with calls that comes back without
# reasoning_content; empty counts as missing for some of its models. All of its kimi models refuse sampling. Ids of calls
# look like functions.name:0.
MOONSHOT: Final = Profile(
    name="moonshot",
    base_url="https://api.moonshot.ai/v1",
    hosts=("api.moonshot.ai", "api.moonshot.cn"),
    key_env="MOONSHOT_API_KEY",
    source="platform.kimi.ai/docs/api/chat, github.com/vercel/ai 62c0e17 (packages/moonshotai), github.com/earendil-works/pi/issues/4251",
    checked="2026-11-30",
    output_limit="max_completion_tokens",
    user=None,
    parallel=False,
    tool_choices=("auto", "none"),
    no_sampling_models=("kimi-",),
    reasoning_sent=("reasoning_content",),
    reasoning_demanded=("reasoning_content",),
    reasoning_filler=" ",
)
# `required` is not in its guide (auto, none or a function); answers by a JSON schema only some of its models know.
ALIBABA: Final = Profile(
    name="alibaba",
    base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com"),
    key_env="DASHSCOPE_API_KEY",
    source="alibabacloud.com/help/en/model-studio/qwen-function-calling (of 2026-06-18), github.com/vercel/ai f072b6b (packages/alibaba)",
    checked="2026-11-30",
    user=None,
    tool_choices=("auto", "none", "function"),
)
# Its own client knows neither `user` nor parallel_tool_calls.
TOGETHER: Final = Profile(
    name="together",
    base_url="https://api.together.xyz/v1",
    hosts=("api.together.xyz", "api.together.ai"),
    key_env="TOGETHER_API_KEY",
    source="github.com/togethercomputer/together-py 60558ba (types/chat/completion_create_params.py)",
    checked="2026-11-30",
    user=None,
    parallel=False,
    output_schema=True,
    reasoning_sent=("reasoning",),
)
# Every tool_choice (`any` is its other word for required), parallel_tool_calls and `user`. What does not fit the context
# window is answered shorter by default, not refused.
FIREWORKS: Final = Profile(
    name="fireworks",
    base_url="https://api.fireworks.ai/inference/v1",
    hosts=("api.fireworks.ai",),
    key_env="FIREWORKS_API_KEY",
    source="github.com/fw-ai-external/python-sdk ffffdf4 (types/chat/completion_create_params.py)",
    checked="2026-11-30",
    output_schema=True,
    reasoning_sent=("reasoning_content",),
)
# Its client knows every tool_choice, parallel_tool_calls and `user`; max_tokens is deprecated.
CEREBRAS: Final = Profile(
    name="cerebras",
    base_url="https://api.cerebras.ai/v1",
    hosts=("api.cerebras.ai",),
    key_env="CEREBRAS_API_KEY",
    source="github.com/Cerebras/cerebras-cloud-sdk-python 68768b9 (types/chat/completion_create_params.py), inference-docs.cerebras.ai/api-reference/chat-completions",
    checked="2026-11-30",
    output_limit="max_completion_tokens",
    output_schema=True,
    reasoning_sent=("reasoning",),
)

PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        OPENAI,
        OPENAI_RESPONSES,
        ANTHROPIC,
        AZURE,
        GEMINI,
        MISTRAL,
        DEEPSEEK,
        XAI,
        XAI_RESPONSES,
        GROQ,
        OPENROUTER,
        TOGETHER,
        FIREWORKS,
        CEREBRAS,
        MOONSHOT,
        ALIBABA,
        OLLAMA,
        VLLM,
        GENERIC,
    )
}


def split_model(model: str) -> tuple[Profile | None, str]:
    """`anthropic:claude-...` -> its profile and the name alone; any other text is a name (`llama3.2:3b` as well)."""
    provider, colon, name = model.partition(":")
    profile = PROFILES.get(provider) if colon and name else None
    return (None, model) if profile is None else (profile, name)


def profile_for(base_url: str) -> Profile:
    """The profile of the server at that base URL."""
    host = (urlsplit(base_url).hostname or "").lower()
    for profile in PROFILES.values():
        if any(host == known or (known.startswith(".") and host.endswith(known)) for known in profile.hosts):
            return profile
    return GENERIC
