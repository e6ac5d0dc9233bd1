"""Where the HTTP API is put together: routes, the edge around them, errors, and the document that describes them."""

from __future__ import annotations

from typing import Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from toolfleet.api import agents, batches, decisions, files, operations, runs
from toolfleet.api.batch_models import FileForm
from toolfleet.api.context import Api
from toolfleet.api.edge import Edge
from toolfleet.api.incoming import OVERHEAD_BYTES, Streamed
from toolfleet.api.models import ProblemOut
from toolfleet.api.problems import (
    INTERNAL,
    MEDIA_TYPE,
    TITLES,
    Problem,
    ProblemRaised,
    problem_of,
    request_id_of,
)
from toolfleet.schemas.errors import ToolfleetError
from toolfleet.settings import Settings
from toolfleet.version import __version__

log = structlog.get_logger("toolfleet.api")

PREFIX: Final = "/api/v1"
ABOUT: Final = """Runs of agents, decided step by step by a fleet of workers. A key (`toolfleet keys create`) says whose
tenant it is and what it may do. Ids of another tenant are answered as ids of nothing are. Errors are RFC 9457 documents."""
# What any route may answer beside what it is for.
ALWAYS: Final = (400, 401, 403, 404, 405, 429, 500, 503)
WITH_BODY: Final = (408, 409, 413, 415, 422)
WITH_PARAMETERS: Final = (422,)
NO_KEY: Final = (400, 405, 500)
# What a POST makes: the status that says so, the parameter its id is, and the operations that take it.
MADE: Final = {
    f"{PREFIX}/runs": (
        "202",
        "run_id",
        ("runs_get", "runs_cancel", "runs_items", "runs_calls", "runs_events"),
    ),
    f"{PREFIX}/files": ("201", "file_id", ("files_get", "files_content", "files_delete")),
    f"{PREFIX}/batches": (
        "201",
        "batch_id",
        (
            *("batches_get", "batches_report", "batches_output", "batches_errors"),
            *("batches_cancel", "batches_resume"),
        ),
    ),
}


def make_api(api: Api, settings: Settings) -> ASGIApp:
    """The application, with the edge around it."""
    upload = Streamed(
        files.FORM,
        settings.http_file_bytes_max + OVERHEAD_BYTES,
        whole_s=settings.http_upload_s,
        pause_s=settings.http_body_s,
    )
    return Edge(
        make_routes(api),
        body_bytes_max=settings.http_body_bytes_max,
        body_s=settings.http_body_s,
        open_door=not api.asks,
        streamed={("POST", f"{PREFIX}/files"): upload},
    )


def make_routes(api: Api | None) -> FastAPI:
    """The routes alone; without front doors for their document."""
    app = FastAPI(
        title="toolfleet",
        version=__version__,
        description=ABOUT,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}",
    )
    app.state.api = api
    routes = APIRouter(prefix=PREFIX)
    for router in (
        agents.router,
        runs.router,
        files.router,
        batches.router,
        decisions.approvals,
        decisions.effects,
        operations.router,
    ):
        routes.include_router(router)
    app.include_router(routes)
    app.include_router(operations.health)
    app.add_exception_handler(ToolfleetError, _on_error)
    app.add_exception_handler(ProblemRaised, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)  # which is raised again after it, and logged at the edge
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's own way to replace it
    return app


async def _on_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ToolfleetError)
    problem = problem_of(exc)
    if problem.status == 500:
        log.error("request_failed", code=exc.code, error=exc.message, request_id=request_id_of(request))
    return problem.response(request_id_of(request))


async def _on_problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ProblemRaised)
    return exc.problem.response(request_id_of(request))


async def _on_invalid(request: Request, exc: Exception) -> Response:
    """What of the request does not fit; never the values."""
    assert isinstance(exc, RequestValidationError)
    found = tuple((_pointer(one["loc"]), str(one["msg"])) for one in exc.errors())
    where, why = found[0] if found else ("", "it does not fit")
    problem = Problem(
        422,
        "invalid_request",
        f"{where or 'the request'}: {why}",
        f"The document says what fits: GET {PREFIX}/openapi.json",
        param=where or None,
        errors=found,
    )
    return problem.response(request_id_of(request))


def _pointer(loc: tuple[int | str, ...]) -> str:
    """A JSON pointer into the body; `name (query)` for what stands elsewhere."""
    place, *rest = loc
    if place != "body":
        return f"{'.'.join(map(str, rest))} ({place})"
    return "".join(f"/{str(one).replace('~', '~0').replace('/', '~1')}" for one in rest) or "/"


async def _on_http(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    code = {404: "unknown_route", 405: "method_not_allowed"}.get(exc.status_code, "http_error")
    hint = f"The routes are in GET {PREFIX}/openapi.json"
    detail = f"{request.method} {request.url.path[:200]}: {str(exc.detail).lower()}"
    return Problem(exc.status_code, code, detail, hint, headers=exc.headers or {}).response(
        request_id_of(request)
    )


async def _on_bug(request: Request, exc: Exception) -> Response:
    return INTERNAL.response(request_id_of(request))


# -- the document --------------------------------------------------------------------------------------------------------


def document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of the routes, with every answer each of them may give."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        schemas = made["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["FileForm"] = FileForm.model_json_schema()
        problem = ProblemOut.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"))
        schemas["Problem"] = problem
        for path, operations_ in made["paths"].items():
            for method, operation in operations_.items():
                _complete(path, method, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    if "422" in answers and "application/json" in answers["422"].get("content", {}):
        del answers["422"]  # FastAPI's own form of it, which is never sent
    keyed = path.startswith(PREFIX)
    statuses = set(ALWAYS if keyed else NO_KEY)
    if "requestBody" in operation:
        statuses |= set(WITH_BODY)
    if operation.get("parameters"):
        statuses |= set(WITH_PARAMETERS)
    if method == "post":
        statuses.add(409)
    for status in sorted(statuses):
        answers.setdefault(str(status), _problem_answer(status))
    for status, answer in answers.items():
        headers = answer.setdefault("headers", {})
        headers["x-request-id"] = {"schema": {"type": "string"}, "description": "names this request"}
        if status in ("429", "503") and keyed:
            headers["Retry-After"] = {"schema": {"type": "integer"}, "description": "seconds"}
    if method == "post" and path in MADE:
        _complete_made(answers, *MADE[path])
    answers.update({status: answers.pop(status) for status in sorted(answers)})


def _complete_made(answers: dict[str, Any], status: str, parameter: str, followers: tuple[str, ...]) -> None:
    """Where to look at what was made, and which operations may follow."""
    answers[status]["headers"]["Location"] = {
        "schema": {"type": "string"},
        "description": "where to look at it",
    }
    answers[status]["links"] = {
        name: {"operationId": name, "parameters": {parameter: "$response.body#/id"}} for name in followers
    }
    if parameter == "file_id":
        answers[status]["links"]["batches_create"] = {
            "operationId": "batches_create",
            "requestBody": {"input_file_id": "$response.body#/id"},
        }


def _problem_answer(status: int) -> dict[str, Any]:
    return {
        "description": TITLES[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
