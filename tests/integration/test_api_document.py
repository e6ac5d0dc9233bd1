"""The document of the API, and what is generated from it: every route with another tenant's ids, and with no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.integration.api_world import World
from toolfleet.api.app import document, make_routes

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT: dict[str, Any] = document(make_routes(None))
OPERATIONS = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
IDS = [f"{method.upper()} {path}" for method, path, _ in OPERATIONS]

# Whose object a parameter names: of which the other tenant's id is put in its place. A new parameter has to be added
# here, or to FREE, or the test fails.
OBJECTS = (
    *("run_id", "previous_run_id", "approval_id", "call_id", "dead_id", "cursor"),
    *("file_id", "input_file_id", "batch_id"),
)
# Parameters and fields that are names within the caller's own tenant or say how to answer, never an object's id.
FREE = {
    *("limit", "status", "state", "agent", "name", "version", "tool", "wait", "after", "starting_after"),
    *("x-tenant", "prefer", "last-event-id", "if-none-match", "Idempotency-Key"),
    *("input", "context", "metadata", "limits", "deadline_s", "lane", "reason", "arguments_hash"),
    *("arguments", "outcome", "note", "answer", "confirmed", "repeat_effects"),
    *("file", "purpose", "keep_s", "endpoint", "format", "template", "id_field", "window_s"),
}
# Cursors that are a place in a list and name nothing: another tenant's tells nothing either.
PLACES = {"agents_ls", "runs_calls", "operations_breakers", "operations_workers"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("api")).serving() as made:
        yield made


@pytest.fixture(scope="module")
def theirs(world: World) -> dict[str, str]:
    """An object of each kind that belongs to the tenant `acme`."""
    paid = world.submitted(json.dumps(["pay", {"to": "eve", "amount": 5}]))["id"]
    asked = world.asked(paid)
    assert world.ask("POST", f"/approvals/{asked['id']}/approve", json={}).status_code == 200
    world.ended(paid)
    (effect,) = world.ask("GET", f"/effects?run_id={paid}").json()["data"]
    waiting = world.submitted(json.dumps(["pay", {"to": "eve", "amount": 6}]))["id"]
    world.add_dead("dead_theirs", "acme", paid)
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/runs",
        "body": {"agent": "desk", "input": "hi"},
    }
    handed_in = world.ask("POST", "/files", files={"file": ("in.jsonl", json.dumps(line).encode())})
    file_id = handed_in.json()["id"]
    batch = world.ask("POST", "/batches", json={"input_file_id": file_id})
    return {
        "file_id": file_id,
        "input_file_id": file_id,
        "batch_id": batch.json()["id"],
        "run_id": waiting,
        "previous_run_id": paid,
        "approval_id": world.asked(waiting)["id"],
        "call_id": effect["call_id"],
        "dead_id": "dead_theirs",
    }


def _cursor_of(operation: dict[str, Any], theirs: dict[str, str]) -> str | None:
    """The id that a cursor of that list is made of; None: it is a place."""
    kinds = {
        "runs_ls": "run_id",
        "approvals_ls": "approval_id",
        "effects_effects_ls": "call_id",
        "operations_dead_ls": "dead_id",
        "files_ls": "file_id",
        "batches_ls": "batch_id",
    }
    if operation["operationId"] in PLACES:
        return None
    return theirs[kinds[operation["operationId"]]]


def _schema(operation: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Media type and schema of the body."""
    if "requestBody" not in operation:
        return None
    ((media_type, content),) = operation["requestBody"]["content"].items()
    schema = content["schema"]
    named = schema.get("$ref") or next(one["$ref"] for one in schema["anyOf"] if "$ref" in one)
    return media_type, DOCUMENT["components"]["schemas"][named.rpartition("/")[2]]


def _body(operation: dict[str, Any]) -> dict[str, Any] | None:
    """A JSON body that fits: the example of its schema."""
    found = _schema(operation)
    if found is None or found[0] != "application/json":
        return None
    return dict(found[1].get("examples", [{}])[0])


def _sent(operation: dict[str, Any]) -> dict[str, Any]:
    """As the client is given it."""
    found = _schema(operation)
    if found is not None and found[0] == "multipart/form-data":
        return {"files": {"file": ("in.jsonl", b"{}")}}
    return {"json": _body(operation)}


def _fields(operation: dict[str, Any]) -> set[str]:
    found = _schema(operation)
    return set() if found is None else set(found[1].get("properties", {}))


def test_the_committed_document_is_the_one_that_is_served(world: World) -> None:
    committed = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))

    assert world.ask("GET", "/openapi.json", None).json() == committed == DOCUMENT


def test_the_examples_of_bodies_fit_their_schemas() -> None:
    checked = 0
    for name, schema in DOCUMENT["components"]["schemas"].items():
        whole = {**schema, "components": DOCUMENT["components"]}
        for example in schema.get("examples", ()):
            jsonschema.Draft202012Validator(whole).validate(example)
            checked += 1
        assert name != "HTTPValidationError"
    assert checked >= 7


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_the_ids_of_another_tenant_are_ids_of_nothing(
    world: World, theirs: dict[str, str], method: str, path: str, operation: dict[str, Any]
) -> None:
    """Each parameter and field that names an object, one after the other, asked for by a key of another tenant and, so
    that a refusal is known to be one of the tenant, by a key of their own."""
    parameters = {one["name"]: one["in"] for one in operation.get("parameters", ())}
    unknown = (set(parameters) | _fields(operation)) - set(OBJECTS) - FREE
    assert not unknown, f"say in OBJECTS or FREE what these are: {unknown}"

    for name in sorted((set(parameters) | _fields(operation)) & set(OBJECTS)):
        foreign = _cursor_of(operation, theirs) if name == "cursor" else theirs[name]
        if foreign is None:
            continue
        body, query, target = _body(operation), {}, path
        for path_name, where in parameters.items():
            if where == "path":
                value = foreign if path_name == name else theirs.get(path_name, "desk")
                target = target.replace(f"{{{path_name}}}", value)
        if parameters.get(name) == "query":
            query[name] = foreign
        elif name not in parameters:
            assert body is not None
            body[name] = foreign
        answer = world.ask(method.upper(), target.removeprefix("/api/v1"), "other", json=body, params=query)
        if operation["operationId"] == "runs_ls":  # a place among all ids, and a list of the caller's own
            assert all(one["tenant"] == "other" for one in answer.json()["data"])
            continue
        assert answer.status_code == 404, f"{name}: {answer.status_code} {answer.text}"
        assert answer.json()["error"]["code"].startswith("unknown_"), answer.text
        nothing = foreign.replace("theirs", "nobodys")[:-3] + "xyz"
        other = world.ask(
            method.upper(),
            target.replace(foreign, nothing).removeprefix("/api/v1"),
            "other",
            json=None if body is None else json.loads(json.dumps(body).replace(foreign, nothing)),
            params={key: nothing if value == foreign else value for key, value in query.items()},
        )
        known, unknown_ = answer.json(), other.json()
        assert known["detail"].replace(foreign, nothing) == unknown_["detail"], "they can be told apart"
        assert (other.status_code, known["hint"]) == (404, unknown_["hint"])


def test_lists_of_another_tenant_hold_nothing_of_it(world: World, theirs: dict[str, str]) -> None:
    lists = [
        path
        for method, path, operation in OPERATIONS
        if method == "get"
        and "{" not in path
        and "cursor" in {one["name"] for one in operation.get("parameters", ())}
    ]
    assert len(lists) >= 8
    for path in lists:
        answer = world.ask("GET", path.removeprefix("/api/v1"), "other", params={"limit": 100})
        for foreign in theirs.values():
            assert foreign not in answer.text, path


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_no_route_of_the_api_answers_without_a_key(
    world: World, method: str, path: str, operation: dict[str, Any]
) -> None:
    if not path.startswith("/api/v1"):
        assert "security" not in operation, "health asks for none, and says so"
        return
    target = path.removeprefix("/api/v1").replace("{", "").replace("}", "")

    answer = world.ask(method.upper(), target, None, **_sent(operation))

    assert answer.status_code == 401 and operation["security"] == [{"key": []}]
    assert answer.json()["error"]["code"] == "no_key"
