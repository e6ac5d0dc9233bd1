"""The HTTP API on a real socket: runs, decisions, operations, keys, repeated requests, and everything that is refused."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.integration.api_world import BODY_BYTES_MAX, World, problem, until
from toolfleet.schemas.access import Quota
from toolfleet.schemas.errors import StoreUnavailable


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("api")).serving() as made:
        yield made


# -- runs ----------------------------------------------------------------------------------------------------------------


def test_a_run_is_submitted_waited_for_and_looked_at(world: World) -> None:
    answer = world.ask("POST", "/runs", json={"agent": "desk", "input": "hi", "metadata": {"ticket": "7"}})

    assert answer.status_code == 202
    run = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert (run["tenant"], run["principal"], run["metadata"]) == ("acme", "acme", {"ticket": "7"})
    waited = world.ask("GET", f"/runs/{run['id']}", headers={"Prefer": "wait=30"})
    assert waited.headers["preference-applied"] == "wait=30"
    assert (waited.json()["status"], waited.json()["output"]) == ("completed", "hello: hi")
    items = world.ask("GET", f"/runs/{run['id']}/items?limit=1").json()
    assert (items["data"][0]["kind"], items["data"][0]["text"], items["has_more"]) == ("user", "hi", True)
    rest = world.ask("GET", f"/runs/{run['id']}/items?after={items['next_cursor']}").json()
    assert [one["kind"] for one in rest["data"]] == ["assistant"]


def test_what_the_calls_of_a_run_came_to_is_read_by_pages(world: World) -> None:
    many = [["look", {"at": f"place {n}"}] for n in range(5)]
    run = world.submitted(json.dumps(many))
    world.ended(run["id"])

    seen: list[Any] = []
    cursor = ""
    while True:
        page = world.ask("GET", f"/runs/{run['id']}/calls?limit=2{cursor}").json()
        assert len(page["data"]) <= 2
        seen += page["data"]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"

    assert [(one["turn"], one["index"]) for one in seen] == [(1, n) for n in range(5)]
    assert seen[0]["content"]["data"] == "saw place 0", "an agent with effects runs one at a time"
    assert [one["outcome"] for one in seen] == ["ok", *["not_run"] * 4]


def test_a_run_has_principal_and_permissions_of_its_key_and_not_of_its_body(world: World) -> None:
    text = json.dumps(["note", {"text": "x"}])
    run = world.submitted(text)

    assert world.ended(run["id"])["status"] == "completed"
    (done,) = world.ask("GET", f"/runs/{run['id']}/calls").json()["data"]
    assert (done["outcome"], done["content"]["data"]) == ("ok", "acme wrote x")
    other = world.ended(world.submitted(text, "other")["id"], "other")
    assert other["status"] == "denied", "its key has no permission"

    for name in ("principal", "permissions"):
        refused = world.ask(
            "POST",
            "/runs",
            "other",
            json={"agent": "desk", "input": "hi", "context": {name: ["notes:write"]}},
        )
        assert name in problem(refused, 422, "invalid_input")["detail"]
    smuggled = world.ask("POST", "/runs", json={"agent": "desk", "input": "hi", "tenant": "other"})
    assert problem(smuggled, 422, "invalid_request")["errors"][0]["pointer"] == "/tenant"


def test_runs_are_listed_by_pages_and_filters_and_only_of_the_tenant(world: World) -> None:
    mine = [world.submitted(f"page {n}")["id"] for n in range(3)]
    world.submitted("theirs", "other")
    for run_id in mine:
        world.ended(run_id)

    seen: list[str] = []
    cursor = ""
    while True:
        page = world.ask("GET", f"/runs?limit=2{cursor}").json()
        assert len(page["data"]) <= 2 and {one["tenant"] for one in page["data"]} == {"acme"}
        seen += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen[:3] == mine[::-1] and len(seen) == len(set(seen))
    assert world.ask("GET", "/runs?status=queued&agent=bank").json()["data"] == []
    everybody = world.ask("GET", "/runs?limit=200", "operator").json()["data"]
    assert {one["tenant"] for one in everybody} >= {"acme", "other"}
    theirs = world.ask("GET", "/runs", "operator", headers={"X-Tenant": "other"}).json()["data"]
    assert {one["tenant"] for one in theirs} == {"other"}
    problem(world.ask("GET", "/runs?limit=1000"), 422, "invalid_request")
    problem(world.ask("GET", "/runs?status=nonsense"), 422, "invalid_request")


def test_a_run_is_cancelled_and_says_so_again(world: World) -> None:
    run = world.submitted(json.dumps(["pay", {"to": "eve", "amount": 1}]))
    world.asked(run["id"])

    first = world.ask("POST", f"/runs/{run['id']}/cancel")
    again = world.ask("POST", f"/runs/{run['id']}/cancel", json={})

    assert (first.json()["status"], first.json()["running"]) == ("cancelled", [])
    assert again.json() == first.json()
    withdrawn = world.ask("GET", f"/approvals?run_id={run['id']}&status=withdrawn").json()["data"]
    assert len(withdrawn) == 1


def test_events_are_a_page_or_a_stream_that_ends_with_the_run(world: World) -> None:
    run = world.submitted("stream me")

    with httpx2.stream(
        "GET",
        f"{world.url}/api/v1/runs/{run['id']}/events",
        headers={"Authorization": f"Bearer {world.keys['acme']}", "Accept": "text/event-stream"},
        timeout=60,
    ) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = stream.read().decode()

    ids = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    page = world.ask("GET", f"/runs/{run['id']}/events").json()["data"]
    assert ids == [one["seq"] for one in page] == list(range(1, len(page) + 1))
    assert page[-1]["type"] == "run.finished"
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert data == page
    accept = {"Accept": "text/event-stream"}
    rest = world.ask("GET", f"/runs/{run['id']}/events", headers={**accept, "Last-Event-ID": str(ids[-2])})
    assert [line for line in rest.text.splitlines() if line.startswith("id: ")] == [f"id: {ids[-1]}"]
    over = world.ask("GET", f"/runs/{run['id']}/events?starting_after={ids[-1]}", headers=accept)
    assert (over.status_code, over.content) == (204, b"")
    odd = world.ask("GET", f"/runs/{run['id']}/events", headers={"Last-Event-ID": "x1"})
    problem(odd, 422, "invalid_input")


# -- decisions -----------------------------------------------------------------------------------------------------------


def test_a_call_is_approved_over_http_by_whoever_holds_the_key(world: World) -> None:
    run = world.submitted(json.dumps(["pay", {"to": "eve", "amount": 5}]))
    asked = world.asked(run["id"])
    assert (asked["tool"], asked["arguments"]) == ("pay", {"amount": 5, "to": "eve"})

    wrong = world.ask("POST", f"/approvals/{asked['id']}/approve", "reader", json={})
    stale = world.ask(
        "POST", f"/approvals/{asked['id']}/approve", "approver", json={"arguments_hash": "0" * 64}
    )
    done = world.ask(
        "POST",
        f"/approvals/{asked['id']}/approve",
        "approver",
        json={"reason": "fine", "arguments_hash": asked["arguments_hash"]},
    )

    problem(wrong, 403, "wrong_scope")
    assert problem(stale, 409, "not_allowed")
    assert (done.status_code, done.json()["granted_by"]) == (200, ["approver"])
    assert world.ended(run["id"])["status"] == "completed"
    (effect,) = world.ask("GET", f"/effects?run_id={run['id']}").json()["data"]
    assert effect["state"] == "happened"
    assert world.ask("GET", f"/effects/{effect['call_id']}").json() == effect
    resolved = world.ask(
        "POST", f"/effects/{effect['call_id']}/resolve", json={"outcome": "did_not_happen", "note": "?"}
    )
    problem(resolved, 409, "not_allowed")


def test_a_call_is_rejected_or_changed_over_http(world: World) -> None:
    first = world.asked(world.submitted(json.dumps(["pay", {"to": "eve", "amount": 50}]))["id"])
    second = world.asked(world.submitted(json.dumps(["pay", {"to": "eve", "amount": 51}]))["id"])

    no = world.ask("POST", f"/approvals/{first['id']}/reject", json={"reason": "too much"})
    wrong = world.ask("POST", f"/approvals/{second['id']}/edit", json={"arguments": {"to": "eve"}})
    yes = world.ask("POST", f"/approvals/{second['id']}/edit", json={"arguments": {"to": "eve", "amount": 5}})

    assert no.json()["status"] == "rejected"
    problem(wrong, 422, "invalid_input")
    assert (yes.status_code, yes.json()["arguments"]) == (200, {"amount": 5, "to": "eve"})
    problem(
        world.ask("POST", f"/approvals/{first['id']}/reject", json={"reason": ""}), 422, "invalid_request"
    )


# -- operations ----------------------------------------------------------------------------------------------------------


def test_agents_have_a_version_as_their_etag_and_keep_their_instructions_to_themselves(world: World) -> None:
    answer = world.ask("GET", "/agents/desk")

    assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    assert "secret" not in answer.text
    same = world.ask("GET", "/agents/desk", headers={"If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    changed = world.ask("GET", "/agents/desk", headers={"If-None-Match": '"abc"'})
    assert changed.status_code == 200
    names = [one["name"] for one in world.ask("GET", "/agents").json()["data"]]
    assert names == ["bank", "desk"]
    assert [one["name"] for one in world.ask("GET", "/agents", "desk only").json()["data"]] == ["desk"]
    page = world.ask("GET", "/agents?limit=1").json()
    assert (page["data"][0]["name"], page["next_cursor"]) == ("bank", "bank")


def test_dead_letters_are_those_of_the_tenant_and_are_replayed_or_removed(world: World) -> None:
    run_id = world.submitted("bring back")["id"]
    world.ended(run_id)
    world.add_dead("dead_mine", "acme", run_id)
    world.add_dead("dead_also_mine", "acme", run_id)
    world.add_dead("dead_nobodys", None)

    assert {one["id"] for one in world.ask("GET", "/dead-letters").json()["data"]} == {
        "dead_mine",
        "dead_also_mine",
    }
    everybody = world.ask("GET", "/dead-letters", "operator").json()["data"]
    assert "dead_nobodys" in {one["id"] for one in everybody}
    done = world.ask("POST", "/dead-letters/dead_mine/replay", json={"repeat_effects": False}).json()
    assert world.ended(done["new_run_id"])["retry_of"] == run_id == done["run_id"]
    assert world.ask("DELETE", "/dead-letters/dead_also_mine").status_code == 204
    problem(world.ask("GET", "/dead-letters/dead_also_mine"), 404, "unknown_dead_letter")


def test_workers_are_seen_by_whoever_runs_the_fleet_and_health_by_everybody(world: World) -> None:
    assert world.ask("GET", "/workers", "operator").json()["has_more"] is False
    problem(world.ask("GET", "/workers", "acme"), 403, "wrong_tenant")
    assert world.ask("GET", "/breakers").json()["data"] == []
    reset = world.ask("POST", "/breakers/pay/reset").json()
    assert reset == {"tenant": "acme", "tool": "pay", "reset": False}
    for path in ("/health/live", "/health/ready"):
        assert world.ask("GET", path, None).json() == {"ok": True, "detail": ""}


# -- keys ----------------------------------------------------------------------------------------------------------------


def test_whoever_has_no_key_or_the_wrong_one_is_told_which(world: World) -> None:
    expired = world.run(world.access.create("gone", tenants=["acme"], valid_s=1e-6))
    revoked = world.run(world.access.create("gone", tenants=["acme"]))
    world.run(world.access.revoke(revoked.key.id))
    body = {"agent": "bank", "input": "hi"}

    for key, status, code in (
        (None, 401, "no_key"),
        ("tfk_nobody", 401, "unknown_key"),
        (expired.token, 401, "expired_key"),
        (revoked.token, 401, "revoked_key"),
        ("reader", 403, "wrong_scope"),
        ("approver", 403, "wrong_scope"),
        ("desk only", 403, "agent_not_allowed"),
    ):
        answer = world.ask("POST", "/runs", key, json=body)
        told = problem(answer, status, code)
        assert told["hint"], key
        assert ("www-authenticate" in answer.headers) == (status == 401)
        assert key is None or world.keys.get(key, key) not in answer.text
    problem(world.ask("GET", "/runs", "two"), 400, "tenant_required")
    assert world.ask("GET", "/runs", "two", headers={"X-Tenant": "acme"}).status_code == 200
    problem(world.ask("GET", "/runs", "two", headers={"X-Tenant": "third"}), 403, "wrong_tenant")
    basic = world.ask("GET", "/runs", None, headers={"Authorization": "Basic YTpi"})
    problem(basic, 401, "no_key")


def test_a_rotated_key_works_beside_the_old_one(world: World) -> None:
    old = world.run(world.access.create("svc", tenants=["acme"]))
    new = world.run(world.access.rotate(old.key.id, overlap_s=3600))

    assert [world.ask("GET", "/quota", key.token).status_code for key in (old, new)] == [200, 200]
    last = world.run(world.access.rotate(new.key.id, overlap_s=0))
    assert [world.ask("GET", "/quota", key.token).status_code for key in (old, new, last)] == [200, 401, 200]


def test_the_quotas_of_a_tenant_answer_429_and_say_when(world: World) -> None:
    key = world.run(world.access.create("busy", tenants=["busy"], scopes=["submit", "read"])).token
    world.quota(Quota("busy", runs_in_flight_max=1, requests_per_minute_max=6))

    first = world.ask(
        "POST", "/runs", key, json={"agent": "desk", "input": json.dumps(["pay", {"to": "a", "amount": 1}])}
    )
    until(lambda: world.run(world.client.get(first.json()["id"])).state.status.value == "waiting")
    second = world.ask("POST", "/runs", key, json={"agent": "desk", "input": "hi"})
    used = world.ask("GET", "/quota", key)
    last = until(lambda: _if_refused(world.ask("GET", "/quota", key)))  # a slow machine has more of them

    assert first.status_code == 202 and first.headers["x-ratelimit-remaining-requests"] == "5"
    told = problem(second, 429, "quota_exceeded")
    assert (told["error"]["param"], told["error"]["type"]) == ("runs_in_flight", "rate_limit_error")
    assert second.headers["retry-after"] == "5"
    assert (used.json()["runs_in_flight"], used.json()["runs_in_flight_max"]) == (1, 1)
    assert used.headers["ratelimit-policy"] == '"requests";q=6;w=60'
    problem(last, 429, "too_many_requests")
    assert 0 < int(last.headers["retry-after"]) <= 10
    assert last.headers["x-ratelimit-remaining-requests"] == "0"


def _if_refused(answer: httpx2.Response) -> httpx2.Response | None:
    return answer if answer.status_code == 429 else None


# -- requests that are sent again ----------------------------------------------------------------------------------------


def test_the_same_key_again_is_the_same_run(world: World) -> None:
    body, key = {"agent": "desk", "input": "once"}, {"Idempotency-Key": str(uuid.uuid4())}

    first = world.ask("POST", "/runs", json=body, headers=key)
    again = world.ask("POST", "/runs", json=body, headers=key)
    other = world.ask("POST", "/runs", json={**body, "input": "twice"}, headers=key)
    theirs = world.ask("POST", "/runs", "other", json=body, headers=key)

    assert again.json()["id"] == first.json()["id"] != theirs.json()["id"]
    assert "idempotent-replayed" not in first.headers and again.headers["idempotent-replayed"] == "true"
    problem(other, 422, "idempotency_conflict")
    problem(world.ask("POST", "/runs", json=body, headers={"Idempotency-Key": ""}), 422, "invalid_input")


def test_a_post_that_an_sdk_sends_again_without_a_key_is_the_same_run(world: World) -> None:
    def sent(count: int, text: str = "an sdk", key: str = "acme") -> httpx2.Response:
        headers = {"x-stainless-retry-count": str(count)}
        return world.ask("POST", "/runs", key, json={"agent": "desk", "input": text}, headers=headers)

    first, again, anew = sent(0), sent(1), sent(0)
    alone = sent(2, "its first try never came")
    theirs = sent(1, key="other")

    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert len({one.json()["id"] for one in (first, anew, alone, theirs)}) == 4


def test_a_decision_is_replayed_and_not_made_twice(world: World) -> None:
    asked = world.asked(world.submitted(json.dumps(["pay", {"to": "eve", "amount": 7}]))["id"])
    key = {"Idempotency-Key": str(uuid.uuid4())}
    path = f"/approvals/{asked['id']}/reject"

    first = world.ask("POST", path, json={"reason": "no"}, headers=key)
    again = world.ask("POST", path, json={"reason": "no"}, headers=key)
    other = world.ask("POST", path, json={"reason": "other"}, headers=key)
    without = world.ask("POST", path, json={"reason": "no"})

    assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"
    problem(other, 422, "idempotency_conflict")
    told = problem(without, 409, "not_allowed")
    assert without.headers["x-should-retry"] == "false" and "already" in told["detail"]


# -- what is refused before it is parsed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, "bad_json"),
        (b'{"agent": NaN}', {}, 400, "bad_json"),
        (b'"\\ud800"', {}, 400, "bad_json"),
        (b"\xff\xfe", {}, 400, "bad_json"),
        (b"[]", {}, 422, "invalid_request"),
        (b"{}", {}, 422, "invalid_request"),
        (b'{"agent": 7, "input": "hi"}', {}, 422, "invalid_request"),
        (b'{"agent": "desk", "input": "a\\u0000b"}', {}, 422, "invalid_request"),
        (b'{"agent": "desk", "input": "  "}', {}, 422, "invalid_input"),
        (b'{"agent": "nobody", "input": "hi"}', {}, 404, "unknown_agent"),
        (b'{"agent": "desk", "input": "hi", "previous_run_id": "run_9"}', {}, 404, "unknown_run"),
        (b'{"agent": "desk", "input": "hi", "deadline_s": 1e300}', {}, 422, "invalid_input"),
        (b"agent=desk", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "wrong_content_type"),
        (b"{}", {"Content-Type": ""}, 415, "wrong_content_type"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "encoded_body"),
        (b" " * (BODY_BYTES_MAX + 1), {}, 413, "body_too_large"),
        (b"[" * 5000, {}, 400, "bad_json"),
    ],
)
def test_a_body_that_cannot_be_is_a_clear_error(
    world: World, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = world.ask("POST", "/runs", content=body, headers={"Content-Type": "application/json", **headers})

    assert problem(answer, status, code)["hint"]


def _raw(world: World, *parts: bytes) -> bytes:
    """What the server says to these bytes, sent one after the other on one connection."""
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while more := connection.recv(65_536):
            answer += more
            if b"\r\n\r\n" in answer and answer.endswith(b"}"):
                break
        return answer


def _head(world: World, *lines: str) -> bytes:
    head = ["POST /api/v1/runs HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Authorization: Bearer {world.keys['acme']}", "", ""]).encode()


def test_a_body_that_comes_too_slowly_is_given_up(world: World) -> None:
    answer = _raw(world, _head(world, "Content-Length: 50"), b'{"agent": ')

    assert answer.startswith(b"HTTP/1.1 408") and b"slow_body" in answer


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(world: World) -> None:
    answer = _raw(world, _head(world, "Content-Length: 999999999999"))

    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer


def test_a_body_without_a_length_is_counted_as_it_comes(world: World) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"

    answer = _raw(world, _head(world, "Transfer-Encoding: chunked"), chunk, chunk)

    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer


def test_odd_targets_and_methods_are_clear_errors(world: World) -> None:
    problem(world.ask("GET", "/nothing"), 404, "unknown_route")
    problem(world.ask("PUT", "/runs", json={}), 405, "method_not_allowed")
    problem(world.ask("GET", "/runs/run_%00"), 400, "nul_in_target")
    problem(world.ask("GET", f"/runs?agent={'a' * 9000}"), 400, "target_too_long")
    problem(world.ask("GET", "/runs/run_%ff%fe"), 404, "unknown_run")
    named = world.ask("GET", "/runs/run_9", headers={"x-request-id": "mine-1"})
    assert problem(named, 404, "unknown_run")["request_id"] == "mine-1"
    odd = world.ask("GET", "/runs/run_9", headers={"x-request-id": "not one<script>"})
    assert odd.headers["x-request-id"].startswith("req_")


def test_what_breaks_inside_is_not_told_and_a_database_that_is_away_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(run_id: str) -> None:
        raise RuntimeError("password=hunter2")

    async def away(run_id: str) -> None:
        raise StoreUnavailable("the database cannot be used: refused", hint="Check that it is there.")

    monkeypatch.setattr(world.client.store, "run", broken)
    bug = world.ask("GET", "/runs/run_9")
    monkeypatch.setattr(world.client.store, "run", away)
    outage = world.ask("GET", "/runs/run_9")

    assert "hunter2" not in str(problem(bug, 500, "internal_error"))
    problem(outage, 503, "store_unavailable")
    assert outage.headers["retry-after"] == "2"


def test_without_keys_only_this_machine_is_answered_and_a_decision_takes_a_key_all_the_same(
    world: World,
) -> None:
    from toolfleet.api.server import ApiServer

    server = ApiServer(world.settings, world.client, world.cache, up=True)
    world.run(server.start())
    try:

        def ask(method: str, path: str, **headers: str) -> httpx2.Response:
            return httpx2.request(method, f"{server.address}/api/v1{path}", headers=headers, timeout=30)

        assert ask("GET", "/runs").status_code == 200
        problem(ask("GET", "/runs", Host="fleet.example"), 403, "wrong_host")
        problem(ask("GET", "/runs", Origin="http://evil.example"), 403, "wrong_origin")
        assert ask("GET", "/runs", Origin="http://localhost:3000").status_code == 200
        body = {"agent": "desk", "input": "open door", "context": {"permissions": ["notes:write"]}}
        smuggled = httpx2.post(f"{server.address}/api/v1/runs", json=body, timeout=30)
        problem(smuggled, 422, "invalid_input")
        decided = httpx2.post(f"{server.address}/api/v1/approvals/apr_1/approve", json={}, timeout=30)
        problem(decided, 401, "no_key")
    finally:
        world.run(server.stop())
