"""`toolfleet tools ls | show | schema | lint`: the contracts of an app's tools. Needs the app only, no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.terminal import Column, cut, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.fleet import Fleet
    from toolfleet.lint import Finding
    from toolfleet.schemas.tools import ToolSpec

app = typer.Typer(no_args_is_help=True, help="Look at the tools of an app, and have them judged.")

COLUMNS = (
    Column("TOOL"),
    Column("TIER"),
    Column("KIND"),
    Column("ARGUMENTS", shrinks=True),
    Column("AGENTS", shrinks=True),
    Column("DESCRIPTION", shrinks=True),
)
DESCRIPTION_WIDTH = 60

Name = Annotated[str, typer.Argument(metavar="TOOL", help="Name of a tool (toolfleet tools ls).")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only the tools of this agent.")]
SchemaName = Annotated[
    str | None, typer.Argument(metavar="[TOOL]", help="Name of a tool; all of them without one.")
]
Provider = Annotated[
    Literal["openai", "anthropic"] | None,
    typer.Option("--provider", help="The strict form this provider takes."),
]
Dated = Annotated[str | None, typer.Option("--dated", help="An older profile of the provider, e.g. 2024-08.")]
FailOn = Annotated[
    Literal["error", "warning", "note"],
    typer.Option("--fail-on", help="The least finding that ends the command with 1."),
]


@app.command("ls")
def ls(app: options.App = None, agent: Agent = None, as_json: options.AsJson = False) -> None:
    """List the tools, by name."""
    fleet = _fleet(app)
    rows = [_row(spec, _agents_of(fleet, spec.name)) for spec in _specs(fleet, agent)]
    if as_json:
        print_json({"tools": rows})
        return
    shown = [
        [
            row["name"],
            row["tier"] if row["raised_from"] is None else f"{row['tier']} (declared {row['raised_from']})",
            row["kind"],
            ", ".join(row["arguments"]),
            ", ".join(row["agents"]),
            cut(row["description"], DESCRIPTION_WIDTH),
        ]
        for row in rows
    ]
    print_table(COLUMNS, shown, empty="no tools")


@app.command("show")
def show(name: Name, app: options.App = None, as_json: options.AsJson = False) -> None:
    """Show the whole contract of a tool, and the text a model reads of it."""
    from toolfleet.schemas.tool_text import model_description

    fleet = _fleet(app)
    spec = _spec(fleet, name)
    document = {
        **spec.model_dump(mode="json"),
        "call_timeout_s": spec.call_timeout_s,
        "version": spec.version,
        "agents": _agents_of(fleet, name),
        "model_text": model_description(spec),
    }
    if as_json:
        print_json(document)
        return
    width = max(map(len, document))
    lines = [f"{key:<{width}}  {_shown(value)}" for key, value in document.items() if _says(value)]
    print_text("\n".join(lines))


@app.command("schema")
def schema(
    name: SchemaName = None,
    app: options.App = None,
    provider: Provider = None,
    dated: Dated = None,
    agent: Agent = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a model is told: name, description and parameters; with --provider, in its strict form.

    Ends with 1 if a tool has no strict form. With --agent, limits of a provider that hold for all tools of a request
    are kept as well.
    """
    fleet = _fleet(app)
    specs = [_spec(fleet, name)] if name is not None else _specs(fleet, agent)
    if provider is None:
        documents = [_told(spec) for spec in specs]
        print_json(documents[0] if name is not None else {"tools": documents})
        return
    forms = _strict_forms(specs, provider, dated, shared=agent is not None)
    refused = [form for form in forms if form["refused"]]
    if as_json:
        print_json({"ok": not refused, "provider": provider, "tools": forms})
    else:
        for form in forms:
            _print_form(form, whole=name is not None)
        note(f"{len(forms) - len(refused)} with a strict form for {provider}, {len(refused)} without")
    raise typer.Exit(exits.NOT_COMPLETED if refused else exits.OK)


def _told(spec: ToolSpec) -> dict[str, Any]:
    from toolfleet.schemas.tool_text import model_description, model_parameters

    return {"name": spec.name, "description": model_description(spec), "parameters": model_parameters(spec)}


def _strict_forms(
    specs: list[ToolSpec], provider: str, dated: str | None, *, shared: bool
) -> list[dict[str, Any]]:
    from toolfleet.adapters.llm.strict.profiles import strict_profile
    from toolfleet.adapters.llm.strict.tool import StrictRefusal, strict_tool, strict_tools

    profile = strict_profile(provider, dated)
    found = strict_tools(specs, profile) if shared else [strict_tool(spec, profile) for spec in specs]
    forms: list[dict[str, Any]] = []
    for spec, form in zip(specs, found, strict=True):
        if isinstance(form, StrictRefusal):
            refusal = {"path": form.path, "rule": form.rule, "reason": form.reason}
            forms.append({"tool": spec.name, "profile": profile.id, "refused": refusal})
            continue
        definition = {**_told(spec), "name": form.name, "parameters": form.parameters}
        notes = [{"path": one.path, "rule": one.rule, "text": one.text} for one in form.notes]
        forms.append(
            {"tool": spec.name, "profile": profile.id, **definition, "notes": notes, "refused": None}
        )
    return forms


def _print_form(form: dict[str, Any], *, whole: bool) -> None:
    refused = form["refused"]
    if refused is not None:
        place = f" {refused['path']}" if refused["path"] else ""
        print_text(cut(f"refused: {form['tool']}{place}: {refused['reason']} [{refused['rule']}]", 1_000))
        return
    called = "" if form["name"] == form["tool"] else f" as {form['name']}"
    print_text(f"strict: {form['tool']}{called}")
    for one in form["notes"]:
        print_text("    " + cut(f"{one['path'] or 'the root'}: {one['text']} [{one['rule']}]", 1_000))
    if whole:
        print_json(form["parameters"])


@app.command("lint")
def lint(
    app: options.App = None,
    agent: Agent = None,
    fail_on: FailOn = "warning",
    as_json: options.AsJson = False,
) -> None:
    """Judge the tools as a strict reviewer would; each finding with its reason and what mends it."""
    from toolfleet.lint import SEVERITIES
    from toolfleet.lint import lint as judge

    fleet = _fleet(app)
    agents = [spec for name, spec in sorted(fleet.registry.agents.items()) if agent in (None, name)]
    found = judge(_specs(fleet, agent), agents)
    counts = {severity: sum(one.severity == severity for one in found) for severity in SEVERITIES}
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    failed = any(counts[severity] for severity in failing)
    if as_json:
        print_json({"ok": not failed, **_counted(counts), "findings": [_document(one) for one in found]})
    else:
        for one in found:
            place = f" {one.place}" if one.place else ""
            where = f" (agent {one.agent})" if one.agent else ""
            print_text(cut(f"{one.severity}: {one.tool}{place}{where}: {one.reason} [{one.id}]", 1_000))
            print_text(f"    {one.mend}")
        note(", ".join(f"{count} {name}" for name, count in _counted(counts).items()))
    raise typer.Exit(exits.NOT_COMPLETED if failed else exits.OK)


def _counted(counts: dict[Any, int]) -> dict[str, int]:
    return {f"{severity}s": count for severity, count in counts.items()}


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "tool": finding.tool,
        "place": finding.place or None,
        "agent": finding.agent or None,
        "reason": finding.reason,
        "mend": finding.mend,
    }


def _fleet(app: str | None) -> Fleet:
    from toolfleet.loading import EXAMPLE, load_fleet
    from toolfleet.schemas.errors import InputError
    from toolfleet.tiers import raise_tiers

    if app is None:
        raise InputError("no app was named, so there are no tools to look at", hint=f"Use {EXAMPLE}.")
    fleet = load_fleet(app)
    raise_tiers(fleet.registry, fleet.settings)
    return fleet


def _specs(fleet: Fleet, agent: str | None) -> list[ToolSpec]:
    """The tools of the agent, or all of the app. Raises UnknownAgent."""
    if agent is not None:
        return list(fleet.registry.agent(agent).tools)
    return [declared.spec for _, declared in sorted(fleet.registry.tools.items())]


def _spec(fleet: Fleet, name: str) -> ToolSpec:
    from toolfleet.schemas.builtin_tools import BUILTIN_TOOLS
    from toolfleet.schemas.errors import InputError

    declared = fleet.registry.tools.get(name)
    if declared is None:
        if name in BUILTIN_TOOLS:
            return BUILTIN_TOOLS[name]
        known = ", ".join(sorted(fleet.registry.tools)) or "none"
        raise InputError(f"no tool is called {name!r}", hint=f"Tools: {known}.")
    return declared.spec


def _agents_of(fleet: Fleet, name: str) -> list[str]:
    return sorted(agent.name for agent in fleet.registry.agents.values() if agent.tool(name) is not None)


def _row(spec: ToolSpec, agents: list[str]) -> dict[str, Any]:
    return {
        "name": spec.name,
        "tier": spec.tier.value,
        "raised_from": None if spec.raised_from is None else spec.raised_from.value,
        "kind": "effect" if spec.effect else "read",
        "arguments": list(spec.parameters.get("properties", {})),
        "requires": [one.tool for one in spec.requires],
        "agents": agents,
        "description": spec.description,
        "version": spec.version,
    }


def _says(value: Any) -> bool:
    return value not in (None, "", [], {}, 0.0) or value is False


def _shown(value: Any) -> str:
    import json

    from toolfleet.commands.terminal import printable

    if isinstance(value, str):
        return printable(value, lines=True).replace("\n", "\n" + " " * 4)
    return json.dumps(value, ensure_ascii=False)
