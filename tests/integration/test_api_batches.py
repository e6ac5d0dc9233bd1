"""Files and batches over HTTP, on a real socket: handed in, created, looked at, stopped, read; and everything that is refused."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.api_world import World, problem, until
from toolfleet.files import Files
from toolfleet.schemas.access import Quota
from toolfleet.schemas.errors import StoreUnavailable

FILE_BYTES_MAX = 6_000_000
BOUNDARY = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    with World(folder, http_file_bytes_max=FILE_BYTES_MAX, http_upload_s=30.0).serving() as made:
        yield made


@pytest.fixture
def kept(folder: Path) -> Iterator[Path]:
    """The folder of files; after the test there are only whole files in it."""
    files = folder / "fleet.db.files"
    yield files
    assert [one.name for one in files.iterdir() if one.suffix] == []


def _line(custom_id: str, text: str = "hi", agent: str = "desk", **more: Any) -> bytes:
    body = {"agent": agent, "input": text}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/runs", "body": body}
    return json.dumps({**line, **more}).encode() + b"\n"


def _handed_in(world: World, data: bytes, key: str = "acme", **form: str) -> dict[str, Any]:
    answer = world.ask("POST", "/files", key, files={"file": ("night.jsonl", data)}, data=form)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _created(world: World, data: bytes, key: str = "acme", **more: Any) -> dict[str, Any]:
    file = _handed_in(world, data, key)
    answer = world.ask("POST", "/batches", key, json={"input_file_id": file["id"], **more})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _ended(world: World, batch_id: str, key: str = "acme") -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = world.ask("GET", f"/batches/{batch_id}", key).json()
        return found if found["ended"] else None

    return until(look)


def _lines(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/jsonl"
    return [json.loads(line) for line in answer.content.split(b"\n")[:-1]]


# -- from a file to its answers ---------------------------------------------------------------------------------------------


def test_a_file_becomes_a_batch_and_its_answers_are_read(world: World, kept: Path) -> None:
    data = b"".join(_line(f"c{n}", f"number {n}") for n in range(30)) + _line(
        "denied", '["note", {"text": "x"}]'
    )
    file = _handed_in(world, data, "other")  # whose key has no permission to write notes

    assert (kept / file["id"]).read_bytes() == data
    assert (file["name"], file["size_bytes"], file["tenant"]) == ("night.jsonl", len(data), "other")
    assert world.ask("GET", f"/files/{file['id']}", "other").json() == file
    assert world.ask("GET", f"/files/{file['id']}/content", "other").content == data
    answer = world.ask(
        "POST", "/batches", "other", json={"input_file_id": file["id"], "metadata": {"n": "1"}}
    )
    batch = answer.json()
    assert answer.headers["location"] == f"/api/v1/batches/{batch['id']}"
    assert (batch["status"], batch["counts"]["total"], batch["metadata"]) == ("in_progress", 31, {"n": "1"})
    assert world.ask("DELETE", f"/files/{file['id']}", "other").status_code == 204, (
        "it is not needed any more"
    )

    ended = _ended(world, batch["id"], "other")

    assert (ended["status"], ended["counts"]["completed"], ended["counts"]["failed"]) == ("completed", 30, 1)
    answers = world.ask("GET", f"/batches/{batch['id']}/output", "other")
    assert answers.headers["x-batch-status"] == "completed"
    assert [one["custom_id"] for one in _lines(answers)] == [f"c{n}" for n in range(30)]
    assert _lines(answers)[7]["response"]["body"]["output"] == "hello: number 7"
    (failed,) = _lines(world.ask("GET", f"/batches/{batch['id']}/errors", "other"))
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("denied", 403)
    report = world.ask("GET", f"/batches/{batch['id']}/report", "other").json()
    assert [one["count"] for one in report["outcomes"]] == [30, 1]
    assert report["used"]["model_calls"] >= 31 and report["eta_s"] is None
    run = world.ask("GET", f"/runs/{failed['response']['request_id']}", "other").json()
    assert (run["principal"], run["tenant"], run["lane"]) == ("other", "other", "batch")


def test_rows_of_a_csv_become_runs_of_one_agent_with_the_permissions_of_the_key(world: World) -> None:
    rows = 'id,text\nt1,first\nt2,"second, with\na line"\n'
    plain = {"format": "csv", "agent": "desk", "template": '["note", {{"text": "{id}"}}]', "id_field": "id"}
    batch = _created(world, rows.encode(), **plain)

    _ended(world, batch["id"])

    answers = _lines(world.ask("GET", f"/batches/{batch['id']}/output"))
    assert [one["custom_id"] for one in answers] == ["t1", "t2"]
    run_id = answers[0]["response"]["request_id"]
    (call,) = world.ask("GET", f"/runs/{run_id}/calls").json()["data"]
    assert call["content"]["data"] == "acme wrote t1"


def test_a_batch_is_stopped_and_gone_on_with(world: World) -> None:
    asks = json.dumps(["pay", {"to": "eve", "amount": 1}])
    batch = _created(world, _line("1") + _line("2", asks), limits={"concurrency_max": 1})
    until(lambda: world.ask("GET", "/approvals").json()["data"] or None)

    busy = world.ask("POST", f"/batches/{batch['id']}/resume", json={})
    stopping = world.ask("POST", f"/batches/{batch['id']}/cancel")
    ended = _ended(world, batch["id"])
    again = world.ask(
        "POST", f"/batches/{batch['id']}/resume", json={"window_s": 3600, "limits": {"cost_usd_max": 5}}
    )

    problem(busy, 409, "batch_busy")
    assert stopping.json()["status"] in ("cancelling", "cancelled")
    assert (ended["status"], ended["counts"]["completed"], ended["counts"]["cancelled"]) == (
        "cancelled",
        1,
        1,
    )
    assert again.json()["resumed"] == 1 and again.json()["batch"]["cost_usd_max"] == 5
    assert world.ask("POST", f"/batches/{batch['id']}/cancel", json={}).status_code == 200
    assert _ended(world, batch["id"])["counts"]["total"] == 2


def test_lists_are_paged_and_only_of_the_tenant(world: World) -> None:
    mine = [_created(world, _line(f"p{n}")) for n in range(3)]
    theirs = _created(world, _line("theirs"), "other")

    for what in ("batches", "files"):
        seen: list[str] = []
        cursor = ""
        while True:
            page = world.ask("GET", f"/{what}?limit=2{cursor}").json()
            assert len(page["data"]) <= 2 and {one["tenant"] for one in page["data"]} == {"acme"}
            seen += [one["id"] for one in page["data"]]
            if not page["has_more"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert len(seen) == len(set(seen)) >= 3
        if what == "batches":
            assert seen[:3] == [one["id"] for one in mine][::-1]
    everybody = world.ask("GET", "/batches?limit=200", "operator").json()["data"]
    assert theirs["id"] in {one["id"] for one in everybody}
    for one in mine:
        _ended(world, one["id"])
    failed = world.ask("GET", "/batches?status=failed&limit=200").json()["data"]
    assert {one["status"] for one in failed} <= {"failed"}
    problem(world.ask("GET", "/batches?status=nonsense"), 422, "invalid_request")
    problem(world.ask("GET", "/files?cursor=file_1"), 404, "unknown_file")


# -- sent again --------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_sent_again_is_the_same_file(world: World, kept: Path) -> None:
    def sent(data: bytes, key: str = "acme", **headers: str) -> httpx2.Response:
        return world.ask("POST", "/files", key, files={"file": ("a.jsonl", data)}, headers=headers)

    name = str(uuid.uuid4())
    before = len(list(kept.iterdir()))
    first, again = sent(b"one", **{"Idempotency-Key": name}), sent(b"one", **{"Idempotency-Key": name})
    other = sent(b"two", **{"Idempotency-Key": name})
    theirs = sent(b"one", "other", **{"Idempotency-Key": name})
    tries = [sent(b"three", **{"x-stainless-retry-count": str(n)}) for n in (0, 1)]

    assert first.json() == again.json() and again.headers["idempotent-replayed"] == "true"
    problem(other, 422, "idempotency_conflict")
    assert theirs.json()["id"] != first.json()["id"]
    assert tries[0].json() == tries[1].json()
    assert len(list(kept.iterdir())) == before + 3, "what was sent twice is not kept twice"


def test_a_batch_that_is_sent_again_is_the_same_batch(world: World) -> None:
    file, other = (_handed_in(world, _line(text)) for text in ("a", "b"))
    key = {"Idempotency-Key": str(uuid.uuid4())}

    first, again = (
        world.ask("POST", "/batches", json={"input_file_id": file["id"]}, headers=key) for _ in range(2)
    )
    conflict = world.ask("POST", "/batches", json={"input_file_id": other["id"]}, headers=key)
    tries = [
        world.ask(
            "POST",
            "/batches",
            json={"input_file_id": other["id"]},
            headers={"x-stainless-retry-count": str(count)},
        )
        for count in (0, 1)
    ]

    assert first.json() == again.json() and again.headers["idempotent-replayed"] == "true"
    problem(conflict, 422, "idempotency_conflict")
    assert tries[0].json()["id"] == tries[1].json()["id"] != first.json()["id"]


def test_a_batch_whose_creation_was_cut_off_is_begun_again_by_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _handed_in(world, _line("1") + _line("2"))
    key = {"Idempotency-Key": str(uuid.uuid4())}
    store = world.client.store.batches

    async def away(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailable("the database cannot be used: refused", hint="Check that it is there.")

    monkeypatch.setattr(store, "release", away)
    cut = world.ask("POST", "/batches", json={"input_file_id": file["id"]}, headers=key)
    monkeypatch.undo()
    (waiting,) = world.ask("GET", "/batches?status=validating").json()["data"]
    again = world.ask("POST", "/batches", json={"input_file_id": file["id"]}, headers=key)

    problem(cut, 503, "store_unavailable")
    assert again.status_code == 201 and again.json()["id"] == waiting["id"]
    assert _ended(world, waiting["id"])["counts"]["completed"] == 2


# -- quotas and keys ---------------------------------------------------------------------------------------------------------


def test_a_tenant_that_has_spent_its_day_creates_no_batch(world: World) -> None:
    key = world.run(world.access.create("spent", tenants=["spent"])).token
    file = _handed_in(world, _line("1"), key)
    world.quota(Quota("spent", cost_usd_per_day_max=0.0))

    refused = until(lambda: _if(world.ask("POST", "/batches", key, json={"input_file_id": file["id"]}), 429))

    assert problem(refused, 429, "quota_exceeded")["error"]["param"] == "cost_usd_per_day"
    assert refused.headers["x-should-retry"] == "false"


def _if(answer: httpx2.Response, status: int) -> httpx2.Response | None:
    return answer if answer.status_code == status else None


def test_files_of_a_tenant_have_a_limit_together(world: World, kept: Path) -> None:
    key = world.run(world.access.create("full", tenants=["full"])).token
    files = world.server._api.files
    assert files is not None
    world.server._api.files = Files(files.store, files.bytes, files.bytes_max, tenant_bytes_max=100)
    try:
        _handed_in(world, b"x" * 60, key)
        before = sorted(kept.iterdir())
        refused = world.ask("POST", "/files", key, files={"file": ("b", b"y" * 60)})
    finally:
        world.server._api.files = files

    assert problem(refused, 429, "quota_exceeded")["error"]["param"] == "files_bytes"
    assert sorted(kept.iterdir()) == before, "nothing of it is left"


def test_whoever_has_the_wrong_key_is_told_before_the_body_is_read(world: World) -> None:
    expired = world.run(world.access.create("gone", tenants=["acme"], valid_s=1e-6)).token
    file = _handed_in(world, _line("1"))["id"]
    big = b"x" * 4_000_000

    for key, status, code in (
        (None, 401, "no_key"),
        ("tfk_nobody", 401, "unknown_key"),
        (expired, 401, "expired_key"),
        ("reader", 403, "wrong_scope"),
        ("approver", 403, "wrong_scope"),
    ):
        problem(world.ask("POST", "/files", key, files={"file": ("a", big)}), status, code)
        problem(world.ask("POST", "/batches", key, json={"input_file_id": file}), status, code)
    for method, path in (("DELETE", f"/files/{file}"), ("GET", f"/files/{file}/content")):
        problem(world.ask(method, path, "other"), 404, "unknown_file")
    assert world.ask("GET", f"/files/{file}/content", "reader").status_code == 200
    problem(world.ask("DELETE", f"/files/{file}", "reader"), 403, "wrong_scope")


def test_a_batch_uses_only_agents_that_its_key_may_use(world: World) -> None:
    file = _handed_in(world, b'{"custom_id": "1", "input": "hi"}\n')["id"]
    plain = {"input_file_id": file, "format": "jsonl"}
    lines = _handed_in(world, _line("1") + _line("2", agent="bank") + _line("3", agent="nobody"))["id"]

    problem(
        world.ask("POST", "/batches", "desk only", json={**plain, "agent": "bank"}), 403, "agent_not_allowed"
    )
    problem(world.ask("POST", "/batches", json={**plain, "agent": "nobody"}), 404, "unknown_agent")
    refused = problem(
        world.ask("POST", "/batches", "desk only", json={"input_file_id": lines}), 422, "batch_refused"
    )

    assert [(one["line"], one["code"]) for one in refused["errors"]] == [
        (2, "agent_not_permitted"),
        (3, "unknown_agent"),
    ]


# -- bad input: files that are read to their end, and said all that is wrong with them -----------------------------------------


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\n", [(1, "blank_line")]),
        (b"x" * 5_000_000, [(1, "line_too_long")]),  # 200 MB of it are read in the same way
        (_line("1").decode().encode("utf-16"), [(1, "wrong_encoding")]),
        (_line("1") + b'{"custom_id": "\xff"}\n', [(2, "wrong_encoding")]),
        (_line("1", url="/v1/embeddings"), [(1, "invalid_url")]),
        (_line("1") + _line("2", url="/v1/responses"), [(2, "mixed_endpoints")]),
        (
            _line("1") + b"\n{\n" + _line("1"),
            [(2, "blank_line"), (3, "invalid_json"), (4, "duplicate_custom_id")],
        ),
    ],
    ids=["blank", "one line", "UTF-16", "not UTF-8", "unknown url", "mixed", "several"],
)
def test_what_is_wrong_with_a_file_is_told_with_its_lines(
    world: World, data: bytes, told: list[tuple[int, str]]
) -> None:
    file = _handed_in(world, data)

    refused = problem(world.ask("POST", "/batches", json={"input_file_id": file["id"]}), 422, "batch_refused")

    assert [(one["line"], one["code"]) for one in refused["errors"]] == told
    assert refused["error"]["param"] == "input_file_id"
    batch = refused["hint"].rpartition("/")[2]
    kept = world.ask("GET", f"/batches/{batch}").json()
    assert (kept["status"], kept["counts"]["total"]) == ("failed", 0)
    assert [(one["line"], one["code"]) for one in kept["errors"]] == told


def test_the_errors_of_a_file_are_told_up_to_a_cap(world: World) -> None:
    file = _handed_in(world, b"{\n" * 1000)

    refused = problem(world.ask("POST", "/batches", json={"input_file_id": file["id"]}), 422, "batch_refused")

    assert [one["line"] for one in refused["errors"]] == [*range(1, 101), 100]
    assert refused["errors"][-1]["code"] == "too_many_errors"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/input_file_id"),
        ({"input_file_id": "file_1", "window_s": 1}, "/window_s"),
        ({"input_file_id": "file_1", "limits": {"cost_usd_max": 0}}, "/limits/cost_usd_max"),
        ({"input_file_id": "file_1", "format": "xml"}, "/format"),
        ({"input_file_id": "file_1", "completion_window": "24h"}, "/completion_window"),
    ],
)
def test_a_batch_that_cannot_be_is_a_clear_error(world: World, body: dict[str, Any], pointer: str) -> None:
    refused = problem(world.ask("POST", "/batches", json=body), 422, "invalid_request")

    assert pointer in [one["pointer"] for one in refused["errors"]]


def test_an_agent_and_a_format_have_to_fit_each_other(world: World) -> None:
    file = _handed_in(world, _line("1"))["id"]

    for more in ({"agent": "desk"}, {"format": "csv"}):
        refused = world.ask("POST", "/batches", json={"input_file_id": file, **more})
        assert "agent" in problem(refused, 422, "invalid_input")["detail"]
    problem(world.ask("POST", "/batches", json={"input_file_id": "file_1"}), 404, "unknown_file")


# -- bad input: forms ----------------------------------------------------------------------------------------------------------


def _part(name: str, value: bytes, file_name: str | None = None) -> bytes:
    named = "" if file_name is None else f'; filename="{file_name}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
WHOLE = _part("file", b"x", "a.jsonl")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_form"),
        (b"no form at all", 400, "bad_form"),
        (WHOLE, 400, "bad_form"),
        (END, 422, "invalid_input"),
        (_part("purpose", b"batch") + END, 422, "invalid_input"),
        (_part("file", b"x") + END, 400, "bad_form"),
        (_part("other", b"x", "a") + END, 400, "bad_form"),
        (WHOLE + WHOLE + END, 400, "bad_form"),
        (_part("file", b"", "a.jsonl") + END, 422, "empty_file"),
        (WHOLE + _part("purpose", b"fine-tune") + END, 422, "invalid_input"),
        (WHOLE + _part("keep_s", b"soon") + END, 422, "invalid_input"),
        (WHOLE + _part("keep_s", b"5") + END, 422, "invalid_input"),
        (WHOLE + _part("keep_s", b"nan") + END, 422, "invalid_input"),
        (WHOLE + _part("tenant", b"other") + END, 422, "invalid_input"),
        (WHOLE + _part("keep_s", b"1" * 2000) + END, 400, "bad_form"),
        (b"".join(_part(f"f{n}", b"") for n in range(20)) + END, 400, "bad_form"),
        (f"--{BOUNDARY}\r\n{'X' * 20_000}: 1\r\n\r\n".encode() + END, 400, "bad_form"),
        (f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + END, 400, "bad_form"),
    ],
)
def test_a_form_that_cannot_be_is_a_clear_error_and_leaves_nothing(
    world: World, kept: Path, body: bytes, status: int, code: str
) -> None:
    before = sorted(kept.iterdir())

    answer = world.ask(
        "POST",
        "/files",
        content=body,
        headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"},
    )

    assert problem(answer, status, code)["hint"]
    assert sorted(kept.iterdir()) == before


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "application/json"}, 415, "wrong_content_type"),
        ({"Content-Type": ""}, 415, "wrong_content_type"),
        ({"Content-Type": "multipart/form-data"}, 400, "bad_form"),
        ({"Content-Type": f"multipart/form-data; boundary={'x' * 300}"}, 400, "bad_form"),
        (
            {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": "gzip"},
            415,
            "encoded_body",
        ),
    ],
)
def test_a_body_of_another_form_is_not_read(
    world: World, headers: dict[str, str], status: int, code: str
) -> None:
    problem(world.ask("POST", "/files", content=WHOLE + END, headers=headers), status, code)


def test_the_name_of_a_file_is_a_name_and_no_path(world: World, kept: Path) -> None:
    for given, name in (
        ("../../etc/passwd", "passwd"),
        ("C:\\\\temp\\\\night.csv", "night.csv"),
        ("größe.jsonl", "größe.jsonl"),
        ("a" * 400, "a" * 255),
    ):
        body = _part("file", b"x", given) + END
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        file = world.ask("POST", "/files", content=body, headers=headers).json()
        assert file["name"] == name
        assert (kept / file["id"]).is_file()
        read = world.ask("GET", f"/files/{file['id']}/content")
        assert read.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")


# -- bad input: bodies that do not come as they should ---------------------------------------------------------------------------


def _head(world: World, *lines: str) -> bytes:
    head = [
        "POST /api/v1/files HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        f"Authorization: Bearer {world.keys['acme']}",
    ]
    return "\r\n".join([*head, *lines, "", ""]).encode()


def _connected(world: World) -> socket.socket:
    host, port = world.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def _answer(connection: socket.socket) -> bytes:
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        more = connection.recv(65_536)
        if not more:
            break
        answer += more
    return answer


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_file_that_says_it_is_too_large_is_refused_before_it_comes(world: World, kept: Path) -> None:
    before = sorted(kept.iterdir())
    with _connected(world) as connection:
        connection.sendall(_head(world, "Content-Length: 999999999999", "Expect: 100-continue"))

        answer = _answer(connection)

    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer
    assert sorted(kept.iterdir()) == before


def test_a_file_without_a_length_is_counted_as_it_comes(world: World, kept: Path) -> None:
    before = sorted(kept.iterdir())

    def pieces() -> Iterator[bytes]:
        yield _part("file", b"", "a.jsonl")[:-2]
        for _ in range(FILE_BYTES_MAX // 50_000 + 1):
            yield b"x" * 50_000
        yield b"\r\n" + END

    answer = world.ask(
        "POST",
        "/files",
        content=pieces(),
        headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"},
    )

    problem(answer, 413, "too_large")
    assert sorted(kept.iterdir()) == before


def test_a_file_that_comes_too_slowly_is_given_up(world: World, kept: Path) -> None:
    before = sorted(kept.iterdir())
    with _connected(world) as connection:
        connection.sendall(_head(world, "Content-Length: 50000") + _part("file", b"{}", "a.jsonl"))

        answer = _answer(connection)
        closed = connection.recv(1)

    assert answer.startswith(b"HTTP/1.1 408") and b"slow_body" in answer and closed == b""
    assert sorted(kept.iterdir()) == before


@pytest.mark.parametrize("sent", [0, 1000, 3_000_000])
def test_a_file_that_is_cut_off_leaves_nothing_behind(world: World, kept: Path, sent: int) -> None:
    before = sorted(kept.iterdir())
    body = _part("file", b"x" * sent, "a.jsonl")[:-2]

    with _connected(world) as connection:
        connection.sendall(_head(world, "Transfer-Encoding: chunked") + _chunk(body))
        until(lambda: world.server._api.uploads == 1)

    until(lambda: world.server._api.uploads == 0)
    assert sorted(kept.iterdir()) == before


def test_as_many_files_come_in_at_a_time_as_may(world: World, kept: Path) -> None:
    most = world.server._api.uploads_max
    world.server._api.uploads_max = 1
    try:
        with _connected(world) as connection:
            connection.sendall(
                _head(world, "Transfer-Encoding: chunked") + _chunk(_part("purpose", b"batch"))
            )
            until(lambda: world.server._api.uploads == 1)
            refused = world.ask("POST", "/files", files={"file": ("a", b"x")})
        until(lambda: world.server._api.uploads == 0)
    finally:
        world.server._api.uploads_max = most

    problem(refused, 503, "too_many_uploads")
    assert refused.headers["retry-after"] == "5"


# -- what is kept, and for how long ------------------------------------------------------------------------------------------------


def test_what_has_expired_is_there_no_more_and_what_nobody_names_is_swept_up(
    world: World, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.server._api.files
    assert files is not None
    stays, expires = _handed_in(world, b"stays"), _handed_in(world, b"expires", keep_s="3600")
    orphan, part = kept / f"file_{'0' * 32}", kept / f"file_{'1' * 32}.part"
    stranger = kept / "notes.txt"
    for one in (orphan, part, stranger):
        one.write_bytes(b"of a process that died")
    later = time.time() + 7200
    monkeypatch.setattr(world.client.store, "_time_source", lambda: later)

    assert world.run(files.sweep(still_s=3600)) == 0, "somebody may be at work on them"
    swept = world.run(files.sweep(still_s=-60))

    gone = world.ask("GET", f"/files/{expires['id']}")
    monkeypatch.undo()
    problem(gone, 404, "unknown_file")
    assert swept >= 3
    left = {one.name for one in kept.iterdir()}
    assert stays["id"] in left and stranger.name in left
    assert left.isdisjoint({expires["id"], orphan.name, part.name})
    stranger.unlink()


def test_bytes_that_cannot_be_reached_or_written_are_told(world: World, kept: Path) -> None:
    file = _handed_in(world, _line("1"))
    (kept / file["id"]).unlink()  # another replica has another folder
    gone = world.ask("GET", f"/files/{file['id']}/content")
    batch = world.ask("POST", "/batches", json={"input_file_id": file["id"]})

    for answer in (gone, batch):
        assert "TOOLFLEET_FILES" in problem(answer, 503, "files_unavailable")["hint"]
        assert str(kept) not in answer.text
    files, world.server._api.files = world.server._api.files, None
    try:
        problem(world.ask("GET", "/files"), 503, "no_files")
        problem(world.ask("POST", "/files", files={"file": ("a", b"x")}), 503, "no_files")
    finally:
        world.server._api.files = files
