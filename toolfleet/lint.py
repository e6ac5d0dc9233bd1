"""Judges tools as a strict reviewer would: what a model will get wrong because of how they are declared.

Each finding has an id, where it is, why it matters, and what mends it. Looks at declarations only; the runtime holds
what it holds whatever is found here. The list of rules in docs/tools.md is made from `RULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

from toolfleet import lint_words as words
from toolfleet.adapters.llm.strict.profiles import NEWEST, strict_profile
from toolfleet.adapters.llm.strict.tool import StrictRefusal, strict_tool
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.limits import DEFAULT_LIMITS, TOOLS_NOTED_ABOVE, TOOLS_WARNED_ABOVE
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.tool_text import model_description
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.backoff import longest_backoff_s

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")

DESCRIPTION_CHARS_MAX: Final = (
    1024  # OpenAI's limit of a function description; longer ones are refused with 400
)
DESCRIPTION_WORDS_MIN: Final = 5  # that say something
PARAMETERS_WARNED_ABOVE: Final = 10
EXAMPLE_WANTED_ABOVE: Final = 4  # parameters
OVERLAP_MIN: Final = 0.5  # of the words of two descriptions


@dataclass(frozen=True, slots=True)
class Finding:
    """`place`: the argument, or empty for the tool as a whole. `agent`: where it holds only in that agent."""

    id: str
    severity: Severity
    tool: str
    reason: str
    mend: str
    place: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for."""

    id: str
    severity: Severity
    about: str
    mend: str


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule("no-description", "error", "nothing says what it does", "describe the one thing it does"),
        Rule(
            "vague-name", "error", "its name names no action on a thing", "name it verb_thing, e.g. get_order"
        ),
        Rule(
            "vague-description",
            "error",
            "its description says no more than its name, or would fit many tools",
            "say what it does to which thing, and what comes back",
        ),
        Rule("no-use-when", "warning", "nothing says when to use it", 'add use_when="the user asks …"'),
        Rule(
            "no-not-when",
            "warning",
            "nothing says when not to use it, which is what keeps a model from using it for the neighbouring task",
            'add not_when="…: use … instead"',
        ),
        Rule(
            "no-edge-cases",
            "note",
            "nothing says what comes of an unknown id or an empty answer",
            "add edge_cases=",
        ),
        Rule(
            "long-description",
            "warning",
            f"what the model reads is longer than {DESCRIPTION_CHARS_MAX} characters, which OpenAI refuses",
            "shorten it, or split the tool",
        ),
        Rule(
            "no-argument-description",
            "warning",
            "the argument has no description",
            "describe it: Field(description=…)",
        ),
        Rule(
            "free-form-object",
            "error",
            "an object without named fields lets the model send anything, and no schema can check it",
            "declare its fields as a model, or split the tool into narrow ones",
        ),
        Rule(
            "no-strict-form",
            "note",
            "a provider has no strict form of its parameters, so the model is free to write others",
            'change what the reason names, or declare strict="never"',
        ),
        Rule(
            "open-arguments",
            "error",
            "arguments nobody declared are let through",
            "leave additionalProperties out",
        ),
        Rule(
            "merged-actions",
            "error",
            "one argument chooses between actions of different harm, so one tier fits none of them",
            "declare one tool per action: narrow(…, fixed={…})",
        ),
        Rule(
            "free-action",
            "error",
            "the action is free text, so nothing bounds what the tool may do",
            "declare one tool per action: narrow(…, fixed={…})",
        ),
        Rule(
            "pretend-tool",
            "error",
            "it only hands the model's own output back, at the price of another model turn",
            "leave it out, and ask for the shape of the answer with structured output",
        ),
        Rule(
            "undeclared-effect",
            "error",
            "its name says that it changes something, and it is declared as a read: it would be retried, reused and "
            "run without asking",
            "declare effect=True and a tier, or rename it",
        ),
        Rule(
            "low-tier",
            "warning",
            "what its name says can do more harm than its tier allows for",
            "declare tier='irreversible' (deletes, refunds, payments, rights) or tier='high' (sends, submits, changes)",
        ),
        Rule(
            "effect-named-as-read",
            "warning",
            "its name says that it reads, and it is declared with an effect",
            "name it after what it changes",
        ),
        Rule(
            "secret-argument",
            "error",
            "the model would have to know a secret, and it would stand in the transcript",
            'inject it: Annotated[str, Injected("credential:NAME")]',
        ),
        Rule(
            "system-argument",
            "error",
            "only the runtime knows its value; a model makes one up",
            'inject it: Annotated[str, Injected("tenant")]',
        ),
        Rule(
            "no-source",
            "note",
            "nothing says where its value comes from, so an invented one is not noticed",
            'mark it: Annotated[str, From("user", "upstream")]',
        ),
        Rule(
            "many-arguments",
            "warning",
            "it has many arguments; models leave some out",
            "split it, or give defaults",
        ),
        Rule(
            "no-example",
            "note",
            "its arguments are nested or many, and there is no example",
            "add examples=[…]",
        ),
        Rule(
            "no-call-deadline",
            "note",
            f"that is longer than the {DEFAULT_LIMITS.active_seconds_max:g} s a whole run may work, and nothing ends the "
            "call before",
            "declare call_timeout_s=, or a lower timeout_s or attempts_max",
        ),
        Rule(
            "outside-text",
            "warning",
            "it seems to return text from outside, which may hold instructions to the model",
            "declare a result model with Untrusted() fields, or untrusted=True",
        ),
        Rule(
            "overlapping",
            "warning",
            "two tools do nearly the same, so the model's choice between them is chance",
            "keep one, or have each name the other in its not_when",
        ),
        Rule(
            "unreachable",
            "error",
            "what must come before it is no tool of this agent, or never can, so it can never be called",
            "add what it requires, or drop the requirement",
        ),
        Rule(
            "many-tools",
            "warning",
            f"more than {TOOLS_WARNED_ABOVE} tools in one agent; models choose badly among so many",
            "split the agent, or show fewer at a time (stages, prerequisites)",
        ),
        Rule(
            "some-tools",
            "note",
            f"more than {TOOLS_NOTED_ABOVE} tools in one agent",
            "watch how well they are chosen",
        ),
    )
}


def lint(tools: Iterable[ToolSpec], agents: Iterable[AgentSpec]) -> list[Finding]:
    """All findings, the worst first; those of an agent once for each agent."""
    found: dict[Finding, None] = {}
    for spec in tools:
        found.update(dict.fromkeys(lint_tool(spec)))
    for agent in agents:
        found.update(dict.fromkeys(_agent(agent)))
    return sorted(
        found, key=lambda one: (SEVERITIES.index(one.severity), one.agent, one.tool, one.id, one.place)
    )


def lint_tool(spec: ToolSpec) -> Iterator[Finding]:
    """What can be said of the tool by itself."""
    for check in (_texts, _name_and_tier, _schema, _strict_form, _arguments, _result, _time):
        yield from check(spec)


def _found(id_: str, spec: ToolSpec, detail: str = "", place: str = "", agent: str = "") -> Finding:
    rule = RULES[id_]
    reason = f"{detail}: {rule.about}" if detail else rule.about
    return Finding(id_, rule.severity, spec.name, reason, rule.mend, place, agent)


# -- one tool --------------------------------------------------------------------------------------------------------


def _texts(spec: ToolSpec) -> Iterator[Finding]:
    text = spec.description.strip()
    if not text:
        yield _found("no-description", spec)
    elif _says_nothing(text):
        yield _found("vague-description", spec, repr(text[:60]))
    if not spec.use_when and not words.OCCASIONS.search(text):
        yield _found("no-use-when", spec)
    if not spec.not_when and not words.NEGATIONS.search(text):
        yield _found("no-not-when", spec)
    if not spec.edge_cases:
        yield _found("no-edge-cases", spec)
    length = len(model_description(spec))
    if length > DESCRIPTION_CHARS_MAX:
        yield _found("long-description", spec, f"{length} characters")


def _says_nothing(text: str) -> bool:
    if text.strip("。. ") in words.EMPTY_TEXTS:
        return True
    latin = {word for word in words.parts_of(text) if word.isascii()} - words.EMPTY_WORDS
    others = sum(1 for character in text if not character.isascii() and character.isalpha())
    return len(latin) + others / 2 < DESCRIPTION_WORDS_MIN - 1


def _strict_form(spec: ToolSpec) -> Iterator[Finding]:
    if spec.strict == "never":
        return
    for provider in NEWEST:
        form = strict_tool(spec, strict_profile(provider))
        if isinstance(form, StrictRefusal):
            yield _found("no-strict-form", spec, f"{provider}: {form.reason} ({form.rule})", form.path)


def _name_and_tier(spec: ToolSpec) -> Iterator[Finding]:
    parts = words.parts_of(spec.name)
    if set(parts) <= words.VAGUE_NAMES | words.READS and not set(parts) - words.VAGUE_NAMES - {"get"}:
        yield _found("vague-name", spec, repr(spec.name))
    elif len(parts) == 1 and parts[0] in words.READS | words.CHANGES | words.IRREVERSIBLE:
        yield _found("vague-name", spec, f"{spec.name!r} names no thing")
    if words.PRETENDING.match("_".join(parts)) and not spec.effect:
        yield _found("pretend-tool", spec, repr(spec.name))
        return
    harm = words.harm_of(parts)
    if harm in ("change", "irreversible") and not spec.effect:
        yield _found("undeclared-effect", spec, repr(spec.name))
    elif (harm == "irreversible" and spec.tier is not Tier.IRREVERSIBLE) or (
        harm == "change" and spec.tier is Tier.MEDIUM
    ):
        yield _found("low-tier", spec, f"{spec.name!r} is of tier {spec.tier.value}")
    elif harm == "read" and spec.effect:
        yield _found("effect-named-as-read", spec, repr(spec.name))


def _schema(spec: ToolSpec) -> Iterator[Finding]:
    root = spec.parameters
    properties: Mapping[str, Any] = root.get("properties", {})
    if root.get("additionalProperties") not in (None, False) or root.get("patternProperties"):
        yield _found("open-arguments", spec)
    for path, schema in _places(properties, root, "", 0):
        if _is_free(schema):
            yield _found("free-form-object", spec, place=path)
    if len(properties) > PARAMETERS_WARNED_ABOVE:
        yield _found("many-arguments", spec, f"{len(properties)} arguments")
    nested = any("." in path or "[" in path for path, _ in _places(properties, root, "", 0))
    if (nested or len(properties) > EXAMPLE_WANTED_ABOVE) and not spec.examples:
        yield _found("no-example", spec)


def _is_free(schema: Mapping[str, Any]) -> bool:
    if not schema.keys() - {"description", "title", "default"}:
        return True
    is_object = schema.get("type") == "object" or "object" in _as_list(schema.get("type"))
    named = schema.get("properties") or schema.get("allOf") or schema.get("anyOf") or schema.get("oneOf")
    of_one_kind = isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]
    return is_object and not named and not of_one_kind


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _places(
    properties: Mapping[str, Any], root: Mapping[str, Any], above: str, depth: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema a value may have to fit, with its place; references of the tool's own are followed."""
    if depth > 8:  # what is nested deeper is found above already, or goes round
        return
    for name, schema in properties.items():
        path = f"{above}.{name}" if above else name
        yield from _below(schema, root, path, depth)


def _below(
    schema: Any, root: Mapping[str, Any], path: str, depth: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping) or depth > 8:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from _below(root.get("$defs", {}).get(reference[8:], {"$ref": ""}), root, path, depth + 1)
        return
    yield path, schema
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _below(one, root, path, depth + 1)
    yield from _places(schema.get("properties", {}), root, path, depth + 1)
    if "array" in (schema.get("type"), *_as_list(schema.get("type"))):
        yield from _below(schema.get("items", {}), root, f"{path}[]", depth + 1)


def _arguments(spec: ToolSpec) -> Iterator[Finding]:
    for name, schema in spec.parameters.get("properties", {}).items():
        known = schema if isinstance(schema, Mapping) else {}
        if not str(known.get("description", "")).strip():
            yield _found("no-argument-description", spec, place=name)
        if words.SECRETS.search(name.lower()):
            yield _found("secret-argument", spec, place=name)
        elif words.INJECTABLE_NAMES.match(name.lower()):
            yield _found("system-argument", spec, place=name)
        elif name not in spec.sources and words.IDENTIFYING.search(name.lower()):
            yield _found("no-source", spec, place=name)
        yield from _actions(spec, name, known)


def _actions(spec: ToolSpec, name: str, schema: Mapping[str, Any]) -> Iterator[Finding]:
    """An argument that chooses what the tool does."""
    values = [str(value) for value in schema.get("enum", ()) if isinstance(value, str)]
    harms = {harm for value in values if (harm := words.harm_of(words.parts_of(value))) is not None}
    names_action = name.lower() in words.ACTION_PARAMETERS
    if len(harms) > 1 and (names_action or len(harms) >= len(values) / 2):
        shown = ", ".join(values[:6])
        yield _found("merged-actions", spec, shown, name)
    elif names_action and not values and schema.get("type") == "string" and "const" not in schema:
        yield _found("free-action", spec, place=name)


def _result(spec: ToolSpec) -> Iterator[Finding]:
    marked = any(one.mark == "untrusted" for one in spec.result_fields)
    reads = words.harm_of(words.parts_of(spec.name)) in ("read", None)
    if not spec.effect and reads and not marked and words.OUTSIDE.search(spec.name.lower()):
        yield _found("outside-text", spec, repr(spec.name))


def _time(spec: ToolSpec) -> Iterator[Finding]:
    """A call that is tried again, each time to the end of its deadline and after the longest backoff."""
    waits_s = sum(longest_backoff_s(failures) for failures in range(1, spec.attempts_max))
    longest_s = spec.attempts_max * spec.timeout_s + waits_s
    ends = spec.attempts_max == 1 or spec.call_timeout_s is not None
    if not ends and longest_s > DEFAULT_LIMITS.active_seconds_max:
        detail = f"its {spec.attempts_max} attempts and their backoffs may take {longest_s:.0f} s"
        yield _found("no-call-deadline", spec, detail)


# -- the tools of an agent together ----------------------------------------------------------------------------------


def _agent(agent: AgentSpec) -> Iterator[Finding]:
    count = min(len(agent.tools), agent.control.top_k or len(agent.tools))  # what one step offers
    if count > TOOLS_NOTED_ABOVE:
        id_ = "many-tools" if count > TOOLS_WARNED_ABOVE else "some-tools"
        yield Finding(
            id_,
            RULES[id_].severity,
            "*",
            f"{count} tools: {RULES[id_].about}",
            RULES[id_].mend,
            agent=agent.name,
        )
    for left, right in combinations(agent.tools, 2):
        if _overlap(left, right):
            yield _found("overlapping", left, f"{left.name} and {right.name}", agent=agent.name)
    yield from _unreachable(agent)


def _overlap(left: ToolSpec, right: ToolSpec) -> bool:
    if left.effect != right.effect or _tells_apart(left, right) or _tells_apart(right, left):
        return False
    one, other = _things(left.name), _things(right.name)
    verbs = {words.harm_of(words.parts_of(spec.name)) for spec in (left, right)}
    if one and one == other and verbs == {"read"}:  # get_order, query_order, search_order
        return True
    if set(left.parameters.get("properties", {})) != set(right.parameters.get("properties", {})):
        return False
    first, second = _content(left.description), _content(right.description)
    if not first or not second:
        return False
    return len(first & second) / len(first | second) >= OVERLAP_MIN and (one == other or first == second)


def _tells_apart(spec: ToolSpec, other: ToolSpec) -> bool:
    return any(other.name in text for text in (*spec.not_when, spec.description, *spec.use_when))


def _things(name: str) -> frozenset[str]:
    """The words of a name that are no verbs, in the singular."""
    verbs = words.READS | words.CHANGES | words.DRAFTS | words.IRREVERSIBLE | words.VAGUE_NAMES
    return frozenset(part.removesuffix("s") for part in words.parts_of(name) if part not in verbs)


def _content(text: str) -> frozenset[str]:
    return frozenset(words.parts_of(text)) - words.EMPTY_WORDS - words.READS


def _unreachable(agent: AgentSpec) -> Iterator[Finding]:
    """Tools whose prerequisites or stages can never be met with the tools of this agent."""
    reachable: set[str] = set()
    stages: set[str] = set()
    grown = True
    while grown:
        before = len(reachable)
        for tool in agent.tools:
            after_all = all(one.tool in reachable for one in tool.requires)
            if after_all and (not tool.stages or stages & set(tool.stages)):
                reachable.add(tool.name)
                stages |= {tool.enters_stage} - {None} if tool.enters_stage else set()
        grown = len(reachable) > before
    for tool in agent.tools:
        if tool.name not in reachable:
            yield _found("unreachable", tool, _what_is_missing(agent, tool, stages), agent=agent.name)


def _what_is_missing(agent: AgentSpec, tool: ToolSpec, stages: set[str]) -> str:
    absent: Sequence[str] = [one.tool for one in tool.requires if agent.tool(one.tool) is None]
    if absent:
        return f"{', '.join(absent)} is no tool of {agent.name}"
    if tool.stages and not stages & set(tool.stages):
        return f"nothing leads to stage {' or '.join(tool.stages)}"
    return "what it requires requires it, or can never be called"
