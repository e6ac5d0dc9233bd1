"""How a user declares tools and agents: the `tool` decorator and the registry of a fleet.

From one declaration follow schema, queue, pool, retry and effect rules. Nothing here runs anything.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from toolfleet.contracts import ContractOptions, contract_fields, schema_without
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.builtin_tools import BUILTIN_TOOLS, summary_key
from toolfleet.schemas.errors import InvalidArguments, InvalidDefinition, UnknownAgent
from toolfleet.schemas.limits import (
    RESULT_BYTES_STORED,
    RESULT_BYTES_TO_MODEL,
    TOOL_ATTEMPTS_MAX,
    TOOL_TIMEOUT_S,
    TOOLS_MAX,
)
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.tools import CallFacts, Runner, Strict, ToolContext, ToolSpec
from toolfleet.tool_parts import Part, effect_fields, facts_of

if typing.TYPE_CHECKING:
    from toolfleet.schemas.ports import Credentials

P = ParamSpec("P")
R = TypeVar("R")


class Tool(Generic[P, R]):
    """A declared tool: still callable as the function it was made of, with its contract in `spec`.

    `fixed` are arguments of the function that are given by the declaration and by nobody else.
    """

    def __init__(
        self,
        function: Callable[P, R],
        spec: ToolSpec,
        arguments_model: type[BaseModel] | None,
        *,
        fixed: Mapping[str, Any] = MappingProxyType({}),
        summariser: Tool[..., Any] | None = None,
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        self.function = function
        self.spec = spec
        self.arguments_model = arguments_model
        self.fixed = fixed
        self.summariser = summariser
        self.parts = parts
        functools.update_wrapper(self, function)

    def with_spec(self, spec: ToolSpec) -> Tool[P, R]:
        """The same function under another contract."""
        return Tool(
            self.function,
            spec,
            self.arguments_model,
            fixed=self.fixed,
            summariser=self.summariser,
            parts=self.parts,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name} ({self.spec.tier.value})>"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def invoke(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function with the model's arguments, turned into the types of its signature.

        `arguments` have passed the tool's schema, and hold what is injected. Returns what the function returns (a
        coroutine if it is async).
        """
        given = {**arguments, **self.fixed}
        if self.arguments_model is not None:
            try:
                parsed = self.arguments_model.model_validate(given)
            except ValidationError as exc:
                raise InvalidArguments(f"{self.spec.name}: {_first_error(exc)}") from None
            given = {name: getattr(parsed, name) for name in parsed.model_fields_set}
        if self.spec.context_parameter is not None:
            given[self.spec.context_parameter] = context
        call: Callable[..., Any] = self.function
        return call(**given)

    def invoke_part(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Call what the tool brings beside its function (`precheck`, `reconcile`)."""
        return self.parts[name].call({**arguments, **self.fixed}, context)

    def facts(self, arguments: Mapping[str, Any], context: ToolContext) -> CallFacts:
        """Key, tier and summary of one call. Raises what the tool's own functions raise."""
        return facts_of(self.spec, self.parts, {**arguments, **self.fixed}, context)

    @property
    def target(self) -> str:
        """Where a child process finds it: `module:qualname`, or `/path/file.py:qualname` for the main script."""
        module, qualname = self.function.__module__, self.function.__qualname__
        if module == "__main__":
            path = getattr(sys.modules["__main__"], "__file__", None)
            module = path if path is not None else module
        return f"{module}:{qualname}"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    tier: Tier | str = ...,
    effect: bool = ...,
    idempotent: bool = ...,
    repeatable: bool = ...,
    timeout_s: float = ...,
    call_timeout_s: float | None = ...,
    attempts_max: int = ...,
    name: str | None = ...,
    description: str | None = ...,
    parameters: dict[str, Any] | None = ...,
    runner: Runner | None = ...,
    result_bytes_to_model: int = ...,
    result_bytes_stored: int = ...,
    on_denied: typing.Literal["end_run", "tell_model"] = ...,
    strict: Strict = ...,
    **contract: Unpack[ContractOptions],
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function as a tool.

    tier: low (default) | medium | high | irreversible. effect: it changes the world outside (default: read-only).
    idempotent: it takes `ToolContext.idempotency_key` and does nothing twice under it. repeatable: asking again is
    meaningful. timeout_s: hard deadline of one attempt, seconds. attempts_max: tries of a read-only tool. call_timeout_s:
    of a call over all its attempts, with what it waits between them; not what people are asked for.
    parameters: a JSON Schema instead of the one derived from the signature. runner: "loop" (default of `async def`)
    or "child" (default of plain functions: a process of its own, killed at the deadline). strict: "when_possible" (default: a tool
    without a strict form is sent as it is declared), "required" (such a tool is refused here, with path and rule), or
    "never". A parameter annotated `ToolContext` is injected and never shown to the model. The rest: `ContractOptions`.
    Raises InvalidDefinition.
    """
    if function is not None:
        return _declare(function, {})
    return lambda f: _declare(f, options)


EXECUTION_OPTIONS: dict[str, Any] = {
    "tier": Tier.LOW,
    "effect": False,
    "idempotent": False,
    "repeatable": False,
    "timeout_s": TOOL_TIMEOUT_S,
    "call_timeout_s": None,
    "attempts_max": TOOL_ATTEMPTS_MAX,
    "name": None,
    "description": None,
    "parameters": None,
    "runner": None,
    "result_bytes_to_model": RESULT_BYTES_TO_MODEL,
    "result_bytes_stored": RESULT_BYTES_STORED,
    "on_denied": "end_run",
    "strict": "when_possible",
}


def _declare(function: Callable[..., Any], options: dict[str, Any]) -> Tool[..., Any]:
    label = getattr(function, "__qualname__", repr(function))
    known = {*EXECUTION_OPTIONS, *ContractOptions.__annotations__}
    if unknown := set(options) - known:
        raise InvalidDefinition(
            f"tool {label!r}: unknown option {min(unknown)!r}", hint=f"Options: {', '.join(sorted(known))}."
        )
    chosen = {**EXECUTION_OPTIONS, **options}
    hints = hints_of(function, label)
    context_parameter = next((name for name, hint in hints.items() if hint is ToolContext), None)
    contract = contract_fields(chosen, hints, label)
    model = None
    parameters = chosen.pop("parameters")
    if parameters is None:
        model = _arguments_model(function, hints, context_parameter, label)
        parameters = schema_without(_schema_of(model), contract["injected"])
    is_async = inspect.iscoroutinefunction(function)
    runner: Runner = chosen.pop("runner") or ("loop" if is_async else "child")
    if runner == "child" and "<locals>" in function.__qualname__:
        raise InvalidDefinition(
            f"tool {label!r} is defined inside a function, so its child process cannot find it",
            hint='Move it to the top level of a module, make it "async def", or declare runner="loop".',
        )
    effects, parts = effect_fields(chosen, parameters, label)
    fields = {
        "name": chosen.pop("name") or function.__name__,
        "description": chosen.pop("description") or inspect.getdoc(function) or "",
        "parameters": parameters,
        "runner": runner,
        "context_parameter": context_parameter,
        **{name: chosen[name] for name in EXECUTION_OPTIONS if name in chosen},
        **contract,
        **effects,
    }
    summarise = chosen.get("summarise")
    return Tool(
        function,
        spec_of(fields, label),
        model,
        summariser=summariser_of(summarise, label, runner),
        parts=parts,
    )


def spec_of(fields: dict[str, Any], label: str) -> ToolSpec:
    """The contract, its examples checked against its own schema. Raises InvalidDefinition."""
    try:
        spec = ToolSpec(**fields)
    except ValidationError as exc:
        raise InvalidDefinition(f"tool {label!r}: {_first_error(exc)}") from exc
    if spec.strict == "required":
        _check_strict(spec, label)
    if spec.examples:
        from toolfleet.workers.decision.arguments import Valid, canonical, read_arguments

        for number, example in enumerate(spec.examples, 1):
            read = read_arguments(canonical(example.arguments), spec)
            if not isinstance(read, Valid):
                wrong = "; ".join(
                    f"{one['path']}: {one['message']}" for one in getattr(read, "field_errors", ())
                )
                raise InvalidDefinition(
                    f"tool {label!r}: example {number} does not fit its parameters ({wrong or read.message})",
                    hint="A model copies examples; correct it, or the parameters.",
                )
    return spec


def _check_strict(spec: ToolSpec, label: str) -> None:
    from toolfleet.adapters.llm.strict.profiles import NEWEST, strict_profile
    from toolfleet.adapters.llm.strict.tool import StrictRefusal, strict_tool

    for provider in NEWEST:
        found = strict_tool(spec, strict_profile(provider))
        if isinstance(found, StrictRefusal):
            raise InvalidDefinition(
                f"tool {label!r} has no strict form for {provider}: {found.path or 'the root'}: {found.reason} "
                f"({found.rule})",
                hint='Change the parameter, or declare strict="when_possible": it is then sent as it is declared.',
            )


def summariser_of(function: Callable[[Any], Any] | None, label: str, runner: Runner) -> Tool[..., Any] | None:
    """The function that shortens results, as a tool of its own that no model ever sees."""
    if function is None:
        return None
    names = list(inspect.signature(function).parameters)
    if len(names) != 1:
        raise InvalidDefinition(
            f"tool {label!r}: summarise= takes a function of one parameter, the data", hint=f"It has {names}."
        )
    where: Runner = "loop" if inspect.iscoroutinefunction(function) else runner
    if where == "child" and "<locals>" in function.__qualname__:
        raise InvalidDefinition(
            f"tool {label!r}: its summarise= is defined inside a function, so a child process cannot find it",
            hint="Move it to the top level of a module, or make it async def.",
        )
    if names != ["data"]:
        raise InvalidDefinition(
            f"tool {label!r}: the parameter of summarise= is called {names[0]!r}", hint="Call it `data`."
        )
    spec = ToolSpec(name="summary", description="", parameters={"type": "object"}, runner=where)
    return Tool(function, spec, None)


def hints_of(function: Callable[..., Any], label: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as exc:
        raise InvalidDefinition(
            f"tool {label!r}: the annotations of its signature cannot be resolved ({exc})",
            hint="Import the names it uses at the top level of its module.",
        ) from exc


def _arguments_model(
    function: Callable[..., Any], hints: dict[str, Any], context_parameter: str | None, label: str
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == context_parameter:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidDefinition(
                f"tool {label!r}: parameter {parameter} cannot be described to a model",
                hint="Use named parameters with types, or give a JSON Schema as parameters=.",
            )
        if name not in hints:
            raise InvalidDefinition(
                f"tool {label!r}: parameter {name!r} has no type",
                hint="Annotate it: the model is told its type.",
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    try:
        model: type[BaseModel] = create_model(
            "Arguments", __config__=ConfigDict(extra="forbid", strict=False), **fields
        )
        model.model_json_schema()
    except Exception as exc:
        raise InvalidDefinition(
            f"tool {label!r}: its signature has no JSON Schema ({exc})",
            hint="Use JSON types, dataclasses or pydantic models, or give parameters=.",
        ) from exc
    return model


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON Schema of a function's named parameters. Raises InvalidDefinition where it has none."""
    label = getattr(function, "__qualname__", repr(function))
    return _schema_of(_arguments_model(function, hints_of(function, label), None, label))


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = without_titles(model.model_json_schema())
    assert isinstance(schema, dict)
    schema.setdefault("properties", {})
    return schema


def without_titles(value: Any, *, names: bool = False) -> Any:
    """The schema without the titles pydantic makes up; properties that are called `title` stay."""
    if isinstance(value, dict):
        return {
            key: without_titles(child, names=key in ("properties", "$defs") and not names)
            for key, child in value.items()
            if names or key != "title" or not isinstance(child, str)
        }
    if isinstance(value, list):
        return [without_titles(child) for child in value]
    return value


def _first_error(exc: ValidationError) -> str:
    first = exc.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


class Registry:
    """The tools and agents of one fleet, by name. Loading order does not matter; names are unique."""

    def __init__(self) -> None:
        self.declared: dict[str, Tool[..., Any]] = {}
        self.tools: dict[str, Tool[..., Any]] = {}  # as declared, or with a tier that configuration raised
        self.agents: dict[str, AgentSpec] = {}
        self.hooks: dict[str, Callable[..., Any]] = {}
        self.credentials: Credentials | None = None

    @property
    def runnable(self) -> dict[str, Tool[..., Any]]:
        """Everything a process that runs tools has to have: the tools, and what shortens their results."""
        more = {summary_key(name): one.summariser for name, one in self.tools.items() if one.summariser}
        return {**self.tools, **more}

    @property
    def summarised(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.tools.items() if one.summariser)

    def add_hook(self, function: Callable[..., Any]) -> None:
        """A function agents may name in their rules. Raises InvalidDefinition where the name is taken."""
        name = getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise InvalidDefinition("a hook needs a name", hint="Define it with def, not as a lambda.")
        if self.hooks.get(name, function) is not function:
            raise InvalidDefinition(f"two hooks are called {name!r}", hint="Give one of them another name.")
        self.hooks[name] = function

    def add_tool(self, declared: Tool[..., Any]) -> None:
        if declared.spec.name in BUILTIN_TOOLS:
            raise InvalidDefinition(
                f"the runtime has a tool {declared.spec.name!r} of its own",
                hint=f'Give yours another name, or list that one by its name: tools=["{declared.spec.name}"].',
            )
        known = self.declared.get(declared.spec.name)
        if known is not None and known is not declared:
            raise InvalidDefinition(
                f"two tools are called {declared.spec.name!r}",
                hint="Give one of them another name: tool(name=...).",
            )
        self.declared[declared.spec.name] = declared
        self.tools.setdefault(declared.spec.name, declared)

    def add_agent(self, name: str, *, tools: Iterable[Tool[..., Any] | str], **fields: Any) -> AgentSpec:
        """Declare an agent. Raises InvalidDefinition naming what is wrong."""
        if name in self.agents:
            raise InvalidDefinition(f"two agents are called {name!r}", hint="Give one of them another name.")
        specs = tuple(self._resolve(name, one) for one in tools)
        if len({spec.name for spec in specs}) != len(specs):
            raise InvalidDefinition(f"agent {name!r} lists a tool twice")
        if len(specs) > TOOLS_MAX:
            raise InvalidDefinition(
                f"agent {name!r} has {len(specs)} tools, and providers take at most {TOOLS_MAX}",
                hint="Split the agent, or give it fewer tools.",
            )
        try:
            agent = AgentSpec(name=name, tools=specs, **fields)
        except ValidationError as exc:
            raise InvalidDefinition(f"agent {name!r}: {_first_error(exc)}") from exc
        self._check_rules(agent)
        self.agents[name] = agent
        return agent

    def _check_rules(self, agent: AgentSpec) -> None:
        """What the rules need beside the tools: hooks that exist, a ranking that is installed."""
        for name in (agent.control.hook, agent.context.summariser):
            if name is not None and name not in self.hooks:
                raise InvalidDefinition(
                    f"agent {agent.name!r}: {name!r} is no hook of this fleet",
                    hint=f"Declare it with @fleet.hook. Known: {', '.join(sorted(self.hooks)) or 'none'}.",
                )
        if agent.control.top_k is not None and importlib.util.find_spec("bm25s") is None:
            raise InvalidDefinition(
                f"agent {agent.name!r}: control.top_k needs the package bm25s, which is not installed",
                hint="Install it: pip install 'toolfleet[retrieval]'.",
            )

    def _resolve(self, agent: str, one: Tool[..., Any] | str) -> ToolSpec:
        if isinstance(one, Tool):
            self.add_tool(one)
            return self.tools[one.spec.name].spec
        if isinstance(one, str) and one in BUILTIN_TOOLS:
            return BUILTIN_TOOLS[one]
        if not isinstance(one, str) or one not in self.tools:
            raise InvalidDefinition(
                f"agent {agent!r}: {one!r} is no tool of this fleet",
                hint=f"Declare it with @fleet.tool. Known: {', '.join(sorted(self.tools)) or 'none'}.",
            )
        return self.tools[one].spec

    def agent(self, name: str) -> AgentSpec:
        if name not in self.agents:
            raise unknown_agent(name, self.agents)
        return self.agents[name]


def unknown_agent(name: str, known: Iterable[str]) -> UnknownAgent:
    """The error for an agent nobody declared, with the names that exist."""
    names = ", ".join(sorted(known)) or "none"
    return UnknownAgent(f"no agent is called {name!r}", hint=f"Agents: {names}.", agent=name)
