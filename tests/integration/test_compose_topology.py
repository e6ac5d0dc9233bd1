"""deploy/compose.yaml without Docker: the same commands with the same environment, as processes of this machine.

What differs from containers: the servers come from tests/servers.py, by the variables a user would set in .env, and
each process has a port of its own for its health.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import compose, servers
from toolfleet.commands.worker import RoleName, queues_of
from toolfleet.roles import ALL_ROLES, KEEPER

RUNS = 20
READY_S = 90.0  # eight interpreters on two cores need a quarter of it
DEMO_S = 90.0
TICK_S = 0.1
DEPLOY = compose.ROOT / "deploy"
PATH = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"


@dataclass(slots=True)
class Running:
    """One process in place of a container."""

    name: str
    service: dict[str, Any]
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def serves(self) -> bool:
        """The HTTP API, and not a role."""
        return self.name == "serve"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        return int(self.environment["TOOLFLEET_HTTP_PORT" if self.serves else "TOOLFLEET_HEALTH_PORT"])

    @property
    def grace_s(self) -> float:
        return compose.seconds(self.service["stop_grace_period"])

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and document; (0, {}) where nobody listens yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", f"/health{path}" if self.serves else path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except OSError:
            return 0, {}
        finally:
            connection.close()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while self.get("/ready")[0] != 200:
            assert time.monotonic() < deadline, f"{self.name} is not ready: {self.told()}"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(TICK_S)
            assert self.process.poll() is None, f"{self.name} ended: {self.told()}"

    def healthy(self) -> bool:
        """What `docker ps` would show."""
        kind, *command = self.service["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(
            command,
            env=self.environment,
            check=False,
            timeout=compose.seconds(self.service["healthcheck"]["timeout"]),
        )
        return done.returncode == 0

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@dataclass(slots=True)
class Project:
    """The services of the file over real servers."""

    folder: Path
    services: dict[str, dict[str, Any]]
    running: dict[str, Running] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        """Only what the file gives, and what the image would; nothing of the one who runs the tests."""
        own: dict[str, str] = self.services[name]["environment"]
        local = {"TOOLFLEET_HEALTH_HOST": "127.0.0.1", "TOOLFLEET_HEALTH_PORT": str(servers.free_port())}
        if "TOOLFLEET_HTTP_PORT" in own:
            local |= {"TOOLFLEET_HTTP_HOST": "127.0.0.1", "TOOLFLEET_HTTP_PORT": str(servers.free_port())}
            local["TOOLFLEET_FILES"] = str(self.folder / "files")
        image = {
            "PATH": PATH,
            "HOME": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(DEPLOY),
        }
        return {**image, **own, **local}

    def run(self, name: str, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """A service that ends by itself."""
        return subprocess.run(
            self.services[name]["command"],
            env=self.environment(name),
            cwd=DEPLOY,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, name: str) -> None:
        environment, log = self.environment(name), self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.services[name]["command"],
                env=environment,
                cwd=DEPLOY,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.running[name] = Running(name, self.services[name], environment, process, log)

    def stop(self) -> dict[str, tuple[int | None, float]]:
        """SIGTERM to all at once: exit code (None: still there when its grace period was over) and seconds."""
        began = time.monotonic()
        for one in self.running.values():
            one.process.send_signal(signal.SIGTERM)
        found: dict[str, tuple[int | None, float]] = {}
        for name, one in self.running.items():
            left = max(0.0, one.grace_s - (time.monotonic() - began))
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(left)
            found[name] = one.process.poll(), time.monotonic() - began
        return found


@contextmanager
def project(folder: Path, variables: Mapping[str, str]) -> Iterator[Project]:
    made = Project(folder, compose.load({**compose.REQUIRED, "TOOLFLEET_CHILDREN": "2", **variables}))
    try:
        yield made
    finally:
        for one in made.running.values():
            with suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def topology(made: Project) -> None:
    """Migrate, start every role, submit, look at their health, stop: as `docker compose up` and `down` do it."""
    migrated = made.run("migrate", timeout_s=DEMO_S)
    assert migrated.returncode == 0, migrated.stderr
    for name in {**compose.roles(made.services), **compose.fronts(made.services)}:
        made.start(name)
    for one in made.running.values():
        one.wait_ready()

    served = made.run("demo", timeout_s=DEMO_S)

    lines = [line for line in served.stdout.splitlines() if line.startswith("run_")]
    assert served.returncode == 0, served.stderr + served.stdout
    assert len(lines) == RUNS
    assert all(" completed, 5 of 5 calls ok: " in line for line in lines), served.stdout
    for one in made.running.values():
        status, live = one.get("/live")
        assert (status, live["ok"]) == (200, True), live
        assert one.get("/ready")[0] == 200
        assert one.healthy(), f"{one.name}: the healthcheck of the file fails"
        idle = one.serves or live["roles"] == [KEEPER]
        assert idle or live["settled"] > 0, f"{one.name} had nothing to do: {live}"
    batch_over_http(made)
    ended = made.stop()
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(ended, 0), {
        name: made.running[name].told() for name, (code, _) in ended.items() if code != 0
    }


def batch_over_http(made: Project) -> None:
    """A key is made where the API runs, a file is handed in, and its batch is carried by the roles."""
    (serve,) = compose.fronts(made.services)
    one = made.running[serve]
    created = subprocess.run(
        ["toolfleet", "keys", "create", "nightly"],
        env=one.environment,
        cwd=DEPLOY,
        check=True,
        capture_output=True,
        text=True,
        timeout=DEMO_S,
    )
    headers = {"Authorization": f"Bearer {created.stdout.strip()}"}
    rows = "".join(f'{{"custom_id": "{n}", "input": "cancel order {n}"}}\n' for n in range(5))
    file = httpx2.post(
        f"{one.url}/api/v1/files", files={"file": ("in", rows.encode())}, headers=headers, timeout=DEMO_S
    )
    assert file.status_code == 201, file.text
    body = {"input_file_id": file.json()["id"], "format": "jsonl", "agent": "orders"}
    batch = httpx2.post(f"{one.url}/api/v1/batches", json=body, headers=headers, timeout=DEMO_S)
    assert batch.status_code == 201, batch.text
    url = f"{one.url}/api/v1/batches/{batch.json()['id']}"
    deadline = time.monotonic() + DEMO_S
    while not (seen := httpx2.get(url, headers=headers, timeout=DEMO_S).json())["ended"]:
        assert time.monotonic() < deadline, seen
        time.sleep(TICK_S)  # between two looks at what other processes do
    answers = httpx2.get(f"{url}/output", headers=headers, timeout=DEMO_S).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in answers] == [str(n) for n in range(5)], seen
    assert (made.folder / "files" / file.json()["id"]).read_text() == rows


def test_together_the_roles_of_the_file_serve_every_queue() -> None:
    services = compose.load(compose.REQUIRED)

    served = [
        queue
        for one in compose.roles(services).values()
        for queue in queues_of(RoleName(one["command"][2]), _tiers(one["command"]), None)
    ]

    assert sorted(served) == sorted(ALL_ROLES)


@pytest.mark.timeout(300)
def test_the_processes_of_the_file_carry_runs_over_redis_and_drain(
    tmp_path: Path, redis: servers.Server, postgresql: servers.Server
) -> None:
    variables = {
        "TOOLFLEET_DATABASE": servers.new_database(postgresql, migrated=False),
        "TOOLFLEET_BROKER": servers.redis_url(redis),
        "TOOLFLEET_BROKER_PREFIX": "compose-topology",
    }
    with project(tmp_path, variables) as made:
        topology(made)


@pytest.mark.timeout(300)
def test_the_processes_of_the_file_carry_runs_over_rabbitmq_and_drain(
    tmp_path: Path, rabbitmq: servers.Server, postgresql: servers.Server
) -> None:
    variables = {
        "TOOLFLEET_DATABASE": servers.new_database(postgresql, migrated=False),
        "TOOLFLEET_BROKER": servers.rabbitmq_url(rabbitmq),
        "TOOLFLEET_BROKER_PREFIX": "compose-topology",
    }
    with project(tmp_path, variables) as made:
        topology(made)


def _tiers(command: list[str]) -> list[Any]:
    from toolfleet.schemas.outcomes import Tier

    return [Tier(command[at + 1]) for at, word in enumerate(command) if word == "--tier"]
