"""Reads deploy/compose.yaml as Docker Compose does: anchors merged, variables in their places.

https://github.com/compose-spec/compose-spec/blob/main/12-interpolation.md; of it, what the file uses: `$$`, `${NAME}`,
`${NAME:-default}` and `${NAME:?message}`, one inside the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "deploy" / "compose.yaml"
REQUIRED = {  # what deploy/env.example asks for, with values that are nobody's
    "POSTGRES_PASSWORD": "postgrespassword",
    "REDIS_PASSWORD": "redispassword",
    "TOOLFLEET_SIGNING_KEYS": "k1:" + "0f" * 32,
}
_OPENING = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)(:-|:\?)?)")


class MissingVariable(Exception):
    """A variable without which `docker compose` does not start."""


def load(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services by name. Raises MissingVariable."""
    document = yaml.safe_load(FILE.read_text())
    services: dict[str, dict[str, Any]] = _interpolated(document["services"], variables)
    for service in services.values():
        given = service.get("environment", {})
        looked_up = {name: variables.get(name) if value is None else value for name, value in given.items()}
        service["environment"] = {name: str(value) for name, value in looked_up.items() if value is not None}
    return services


def roles(services: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that run `toolfleet worker`."""
    return {
        name: one for name, one in services.items() if one.get("command", [])[:2] == ["toolfleet", "worker"]
    }


def fronts(services: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that run `toolfleet serve`."""
    return {name: one for name, one in services.items() if one.get("command", []) == ["toolfleet", "serve"]}


def seconds(duration: str) -> float:
    """Of a duration in whole minutes or seconds."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert found is not None and duration, duration
    return 60.0 * int(found[1] or 0) + int(found[2] or 0)


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """The text with every variable replaced. Raises MissingVariable."""
    out, at = "", 0
    while found := _OPENING.search(text, at):
        out += text[at : found.start()]
        if found[1]:
            out, at = out + "$", found.end()
            continue
        end = _closing(text, found.end())
        given, otherwise = variables.get(found[2], ""), text[found.end() : end]
        if not given and found[3] == ":?":
            raise MissingVariable(f"{found[2]}: {otherwise}")
        out += given or (interpolate(otherwise, variables) if found[3] == ":-" else "")
        at = end + 1
    return out + text[at:]


def _closing(text: str, start: int) -> int:
    """Where the brace ends that was opened before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"no closing brace in {text!r}")


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    match value:
        case str():
            return interpolate(value, variables)
        case dict():
            return {key: _interpolated(one, variables) for key, one in value.items()}
        case list():
            return [_interpolated(one, variables) for one in value]
        case _:
            return value
