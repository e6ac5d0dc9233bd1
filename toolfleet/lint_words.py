"""The words the linter of tools knows: verbs by what they do to the world, and words that say nothing.

English and Chinese, because tools are written in both. A verb that is missing here goes unnoticed; that is a gap of
the linter and of nothing else, since no rule of the runtime looks at words.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Harm = Literal["read", "draft", "change", "irreversible"]

READS: Final = frozenset(
    [
        "get",
        "list",
        "search",
        "find",
        "query",
        "read",
        "fetch",
        "look",
        "lookup",
        "show",
        "describe",
        "check",
        "count",
        "view",
        "retrieve",
        "load",
        "download",
        "compare",
        "calculate",
        "compute",
        "estimate",
        "validate",
        "preview",
        "browse",
        "inspect",
        "summarize",
        "summarise",
        "translate",
        "is",
        "has",
        "查询",
        "获取",
        "搜索",
        "查看",
    ]
)
DRAFTS: Final = frozenset(["draft", "prepare", "propose", "create_draft", "save_draft", "草稿"])
CHANGES: Final = frozenset(
    {
        "create",
        "update",
        "edit",
        "change",
        "set",
        "add",
        "insert",
        "put",
        "patch",
        "write",
        "save",
        "rename",
        "move",
        "assign",
        "reopen",
        "reserve",
        "reschedule",
        "submit",
        "send",
        "post",
        "publish",
        "notify",
        "reply",
        "invite",
        "upload",
        "apply",
        "enable",
        "disable",
        "activate",
        "deactivate",
        "lock",
        "unlock",
        "start",
        "stop",
        "restart",
        "run_job",
        "trigger",
        "register",
        "subscribe",
        "unsubscribe",
        "cancel",
        "merge",
        "approve",
        "reject",
        "escalate",
        "transfer",
        "创建",
        "更新",
        "修改",
        "发送",
        "提交",
        "下单",
        "取消",
        "通知",
    }
)
AT_THE_START: Final = frozenset(
    ["email", "mail", "sms", "message", "book", "schedule", "open", "close", "place"]
)  # elsewhere they are things
IRREVERSIBLE: Final = frozenset(
    [
        "delete",
        "remove",
        "drop",
        "purge",
        "erase",
        "wipe",
        "destroy",
        "truncate",
        "refund",
        "pay",
        "charge",
        "withdraw",
        "payout",
        "wire",
        "grant",
        "revoke",
        "terminate",
        "void",
        "删除",
        "退款",
        "转账",
        "付款",
        "扣款",
        "授权",
    ]
)
VAGUE_NAMES: Final = frozenset(
    [
        "query",
        "run",
        "do",
        "execute",
        "exec",
        "process",
        "handle",
        "tool",
        "data",
        "call",
        "api",
        "info",
        "information",
        "action",
        "manage",
        "operation",
        "request",
        "perform",
        "invoke",
        "function",
        "helper",
        "misc",
        "general",
        "main",
        "use",
        "input",
        "output",
        "thing",
        "stuff",
        "item",
        "object",
    ]
)
EMPTY_WORDS: Final = VAGUE_NAMES | frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "for",
        "to",
        "and",
        "or",
        "in",
        "on",
        "with",
        "this",
        "that",
        "it",
        "is",
        "are",
        "be",
        "various",
        "some",
        "any",
        "all",
        "get",
        "gets",
        "given",
        "useful",
        "used",
        "about",
        "things",
        "etc",
        "system",
        "based",
    ]
)
EMPTY_TEXTS: Final = ("查询信息", "处理数据", "执行操作", "获取信息", "处理请求", "调用接口")
ACTION_PARAMETERS: Final = frozenset(
    ["action", "operation", "op", "command", "mode", "method", "verb", "task_type", "action_type"]
)
SECRETS: Final = re.compile(
    r"(^|_)(password|passwd|secret|token|api_?key|credentials?|private_key|access_key|session_id|authorization)(_|$)"
)
INJECTABLE_NAMES: Final = re.compile(
    r"^(tenant(_id)?|trace_?id|request_id|correlation_id|idempotency_key|principal|caller(_id)?|run_id|call_id)$"
)
IDENTIFYING: Final = re.compile(r"(^|_)(id|ids|number|no|code|email|phone|address|amount|iban|account|date)$")
PRETENDING: Final = re.compile(
    r"^(return|provide|give|submit|output|emit|report|send|set|produce|format)_(the_)?(final_)?"
    r"(result|results|answer|answers|response|output|json|reply)$"
    r"|^(final_answer|final_response|final_result|structured_output|answer|respond|finish|done|end_turn|json_output)$"
)
OUTSIDE: Final = re.compile(
    r"(^|_)(web|page|url|site|email|emails|mail|inbox|ticket|tickets|message|messages|comment|comments|review|reviews|"
    r"document|documents|file|files|feed|post|posts|chat|transcript)(_|$)"
)
NEGATIONS: Final = re.compile(
    r"\b(do not use|don't use|not for|never use|not use it|should not be used|does not (handle|cover|change)|unless|"
    r"instead use|use .{1,40} instead)\b|不适用|不要|不用于|不负责|不能用",
    re.IGNORECASE,
)
OCCASIONS: Final = re.compile(
    r"\b(use (it|this|this tool)?\s*(when|if|for|to)|when (the )?(user|customer|you)|whenever|if the (user|customer))\b"
    r"|适用|用户.{0,6}时|当.{1,20}时",
    re.IGNORECASE,
)


def parts_of(name: str) -> list[str]:
    """`getOrder_v2` -> get, order, v2."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [part.lower() for part in re.split(r"[^\w]+|_+", spaced) if part]


def harm_of(words: list[str]) -> Harm | None:
    """What a name's verb does: its first word that is a verb decides, and the rest may only name things."""
    joined = "_".join(words)
    if "draft" in words or "草稿" in joined:
        return "draft"
    for position, word in enumerate(words):
        if position == 0 and len(words) > 1 and word in AT_THE_START:
            return "change"
        for harm, verbs in _BY_HARM:
            if word in verbs or any(not verb.isascii() and verb in word for verb in verbs):
                return harm
    return None


_BY_HARM: Final[tuple[tuple[Harm, frozenset[str]], ...]] = (
    ("irreversible", IRREVERSIBLE),
    ("change", CHANGES),
    ("read", READS),
    ("draft", DRAFTS),
)
