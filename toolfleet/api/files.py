"""Routes of files: taken in as they come, looked at, read, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from toolfleet.api.batch_models import FileForm, FileOut
from toolfleet.api.context import Api, Caller, needs
from toolfleet.api.door import Door
from toolfleet.api.forms import FILE, Form, read_form
from toolfleet.api.models import Page
from toolfleet.api.problems import Problem, ProblemRaised, retry_after
from toolfleet.api.repeats import located, once
from toolfleet.api.runs import Key, Limit
from toolfleet.api.streams import counted, refuse_without_room
from toolfleet.files import Incoming, read_through
from toolfleet.schemas.access import Scope
from toolfleet.schemas.errors import InputError
from toolfleet.schemas.files import FILE_KEEP_S

router = APIRouter(prefix="/files", tags=["files"])

FORM: Final = "multipart/form-data"
BYTES: Final = "application/octet-stream"
EXAMPLE: Final = {"file": '{"custom_id": "1", "method": "POST", …}\n', "purpose": "batch"}
FileId = Annotated[str, Path(description="Id of a file.", min_length=1, max_length=64)]
Submitter = Annotated[Caller, Depends(needs(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(needs(Scope.READ))]


@router.post(
    "",
    status_code=201,
    response_model=FileOut,
    summary="Hand a file in",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {FORM: {"schema": {"$ref": "#/components/schemas/FileForm"}, "example": EXAMPLE}},
        }
    },
)
async def upload(request: Request, caller: Submitter, idempotency_key: Key = None) -> Response:
    """A form with one file. It is streamed to where files are kept, and there whole or not at all. Sent again with the same `Idempotency-Key` and the same bytes, it is the same file."""
    files = Door(caller).files
    with a_place(caller.api):
        async with files.incoming() as coming:
            form = await read_form(request, coming)
            keep_s = _keep_s(form)
            if not coming.size_bytes:
                raise ProblemRaised(
                    Problem(422, "empty_file", "the file is empty", "Send one with requests.", param=FILE)
                )

            async def work() -> FileOut:
                stored = await files.add(
                    coming,
                    name=form.file_name,
                    tenant=caller.own_tenant,
                    created_by=caller.name,
                    keep_s=keep_s,
                )
                return FileOut.of(stored)

            body = _stands_for(coming, form, keep_s)
            answer = await once(request, caller, "files", work, status=201, body=body)
            return located(answer, request.url.path)


@contextlib.contextmanager
def a_place(api: Api) -> Iterator[None]:
    """One of the files that this process works on. Raises ProblemRaised where it has as many as it may."""
    if api.uploads >= api.uploads_max:
        raise ProblemRaised(
            Problem(
                503,
                "too_many_uploads",
                "this process takes in as many files as it may",
                "Send it again in a moment, or to another process.",
                headers=retry_after(5.0),
            )
        )
    api.uploads += 1
    try:
        yield
    finally:
        api.uploads -= 1


def _keep_s(form: Form) -> float:
    """The one field that says something. Raises InputError for what cannot be, and for what nobody knows."""
    unknown = sorted(form.fields.keys() - FileForm.model_fields.keys())
    if unknown:
        known = ", ".join(FileForm.model_fields)
        raise InputError(f"the form has the field {unknown[0]!r}", hint=f"Its fields are: {known}.")
    if form.fields.get("purpose", "batch") != "batch":
        raise InputError("purpose has to be 'batch'", hint="Files are for batches; leave it out.")
    given = form.fields.get("keep_s")
    if given is None:
        return FILE_KEEP_S
    try:
        return float(given)
    except ValueError:
        raise InputError("keep_s has to be a number of seconds", hint="2592000 are 30 days.") from None


def _stands_for(coming: Incoming, form: Form, keep_s: float) -> bytes:
    return orjson.dumps([coming.sha256, form.file_name, keep_s])


@router.get("", response_model=Page[FileOut], summary="List files")
async def ls(
    caller: Reader,
    limit: Limit = 20,
    cursor: Annotated[
        str | None, Query(max_length=64, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[FileOut]:
    """Newest first."""
    found = await Door(caller).files.list(limit=limit + 1, before=cursor, tenant=caller.tenant)
    return Page.of(found, limit, FileOut.of, lambda one: one.file_id)


@router.get("/{file_id}", response_model=FileOut, summary="Look at a file")
async def get(file_id: FileId, caller: Reader) -> FileOut:
    """What is known of it; its bytes are at `/content`."""
    return FileOut.of(await Door(caller).file(file_id))


@router.delete("/{file_id}", status_code=204, summary="Delete a file")
async def delete(file_id: FileId, caller: Submitter) -> Response:
    """For good. A batch that was created of it does not need it any more."""
    await Door(caller).files.delete(file_id, tenant=caller.tenant)
    return Response(status_code=204)


@router.get(
    "/{file_id}/content",
    summary="Read a file",
    response_class=Response,
    responses={
        200: {
            "description": "Its bytes as they were handed in",
            "content": {BYTES: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def content(file_id: FileId, caller: Reader) -> Any:
    """Streamed."""
    door = Door(caller)
    file = await door.file(file_id)
    refuse_without_room(caller.api)
    parts = read_through(await door.files.open(file))
    headers = {
        "Content-Length": str(file.size_bytes),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
    }
    return StreamingResponse(counted(caller.api, parts), media_type=BYTES, headers=headers)
