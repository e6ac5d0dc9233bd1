"""deploy/ and docs/operations.md say what the program does: schemas, linters, and the program's own parser.

Nothing here starts a container; tests/integration/test_compose_topology.py runs the same commands as processes.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import AliasChoices

from tests import compose
from toolfleet import __version__, cli
from toolfleet.adapters.broker.host import COLD_S
from toolfleet.settings import Settings

DEPLOY = compose.ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
OPERATIONS = compose.ROOT / "docs" / "operations.md"
ENV_EXAMPLE = (DEPLOY / "env.example").read_text()
SERVICES = compose.load(compose.REQUIRED)
ROLES = compose.roles(SERVICES)
FRONTS = compose.fronts(SERVICES)
SERVERS = ("postgres", "redis", "rabbitmq")
RESERVE_S = 10.0  # between the end of a drain with everything closed, and kill -9
OURS = {
    f"TOOLFLEET_{name.upper()}" for name, one in Settings.model_fields.items() if one.validation_alias is None
}
ALIASES = {
    str(name)
    for one in Settings.model_fields.values()
    if isinstance(one.validation_alias, AliasChoices)
    for name in one.validation_alias.choices
}
KNOWN = OURS | ALIASES | {"TOOLFLEET_APP"}
SECRET = re.compile(r"PASSWORD|_PASS$|KEY|AUTH$|DATABASE|BROKER$")
YAMLLINT = """
extends: default
rules:
  document-start: disable
  line-length: {max: 160}
  comments: {min-spaces-from-content: 1}
"""


# -- compose.yaml ------------------------------------------------------------------------------------------------------


def test_the_compose_file_fits_the_schema_of_compose_files() -> None:
    done = _run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", compose.FILE]
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_finds_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(compose.FILE.read_text().replace("stop_grace_period:", "stop_grace_perod:"))

    done = _run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", wrong])

    assert done.returncode != 0
    assert "stop_grace_perod" in done.stdout


def test_yamllint_finds_nothing() -> None:
    done = _run([sys.executable, "-m", "yamllint", "--strict", "-d", YAMLLINT, compose.FILE])

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profile", ["default", "demo", "rabbit"])
def test_docker_compose_reads_the_file(profile: str) -> None:
    command = ["docker", "compose", "--env-file", os.devnull, "-f", str(compose.FILE), "--profile", profile]
    if shutil.which("docker") is None or _run(["docker", "compose", "version"]).returncode:
        pytest.skip("not run: no docker compose on this machine")

    done = _run([*command, "config", "--format", "json"], {**os.environ, **compose.REQUIRED})

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    assert {"demo": "demo", "rabbit": "rabbitmq"}.get(profile, "keep") in found
    for name in ROLES:
        assert found[name]["environment"] == SERVICES[name]["environment"]


@pytest.mark.parametrize("missing", sorted(compose.REQUIRED))
def test_nothing_starts_without_a_secret(missing: str) -> None:
    with pytest.raises(compose.MissingVariable, match=missing):
        compose.load({name: value for name, value in compose.REQUIRED.items() if name != missing})


def test_every_kind_of_work_has_a_service_of_its_own() -> None:
    words = {name: " ".join(one["command"][2:]) for name, one in ROLES.items()}

    assert words == {
        "decide": "decide",
        "exec": "exec --tier low --tier medium",
        "exec-high": "exec --tier high",
        "exec-irreversible": "exec --tier irreversible",
        "collect": "collect",
        "keep": "keep",
    }


@pytest.mark.parametrize("name", sorted({*ROLES, *FRONTS, "migrate"}))
def test_the_command_is_one_of_the_program(name: str) -> None:
    program, *words = SERVICES[name]["command"]

    assert program == "toolfleet"
    parse(words)


@pytest.mark.parametrize("name", sorted({*ROLES, *FRONTS}))
def test_a_role_is_given_time_to_drain(name: str) -> None:
    drain_s = float(SERVICES[name]["environment"]["TOOLFLEET_DRAIN_S"])

    assert compose.seconds(SERVICES[name]["stop_grace_period"]) >= drain_s + COLD_S + RESERVE_S


@pytest.mark.parametrize("name", sorted({*ROLES, *FRONTS}))
def test_a_role_waits_for_the_migration_and_is_started_again(name: str) -> None:
    assert SERVICES[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES["migrate"]["restart"] == "no"
    assert SERVICES["migrate"]["command"] == ["toolfleet", "db", "upgrade"]


@pytest.mark.parametrize("name", sorted({*ROLES, *FRONTS, *SERVERS}))
def test_a_service_has_a_healthcheck(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert compose.seconds(check["timeout"]) <= compose.seconds(check["interval"])
    assert check["retries"] > 1, "one slow answer would count as ill"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_can_do_little_harm(name: str) -> None:
    one = SERVICES[name]

    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    if name in FRONTS:
        assert one["ports"] == ["127.0.0.1:8080:8080"], "of this machine alone, until somebody says otherwise"
    else:
        assert "ports" not in one, "no port of a server or worker is open to the world"
    assert "privileged" not in one and "container_name" not in one
    assert one["image"].startswith("toolfleet-app:") or one["user"] == "999:999"


def test_files_that_are_handed_in_are_on_a_volume_that_the_user_of_the_image_may_write() -> None:
    (serve,) = FRONTS.values()
    folder = serve["environment"]["TOOLFLEET_FILES"]

    assert serve["volumes"] == [f"files:{folder}"]
    assert "files" in yaml.safe_load(compose.FILE.read_text())["volumes"]
    assert f"install -d -o 10001 -g 10001 -m 0700 {folder}" in _stages()["toolfleet"]
    assert [name for name, one in SERVICES.items() if "TOOLFLEET_FILES" in one["environment"]] == list(FRONTS)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_limits(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]

    assert set(limits) == {"cpus", "memory", "pids"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_an_image_has_a_version(name: str) -> None:
    tag = SERVICES[name]["image"].rpartition(":")[2]

    assert re.match(r"\d+\.\d+\.\d+|\d+\.\d+-", tag), SERVICES[name]["image"]
    if SERVICES[name]["image"].startswith("toolfleet-app"):
        assert tag == __version__


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_setting_of_a_service_exists(name: str) -> None:
    given = {
        key: value
        for key, value in SERVICES[name]["environment"].items()
        if key.startswith(("TOOLFLEET_", "OPENAI_", "OTEL_"))
    }

    assert set(given) - KNOWN == set()
    if given:
        fields = {
            key.removeprefix("TOOLFLEET_").lower(): value for key, value in given.items() if key in OURS
        }
        Settings(**fields)  # type: ignore[arg-type]  # strings, as the environment has them


def test_no_secret_is_written_down() -> None:
    document = yaml.safe_load(compose.FILE.read_text())
    given = [
        (key, value)
        for one in document["services"].values()
        for key, value in one.get("environment", {}).items()
    ]

    written = {
        key: value for key, value in given if SECRET.search(key) and value and not value.startswith("${")
    }
    examples = {name: value for name, value, off in _examples() if SECRET.search(name) and value and not off}

    assert written == {}
    assert examples == {}
    assert ".env" in (DEPLOY / ".gitignore").read_text().split()


def test_only_decision_workers_get_the_key_of_the_model() -> None:
    services = compose.load({**compose.REQUIRED, "OPENAI_API_KEY": "sk-test"})

    assert [name for name, one in services.items() if "OPENAI_API_KEY" in one["environment"]] == ["decide"]


def test_the_example_explains_every_variable_of_the_file() -> None:
    document = yaml.safe_load(compose.FILE.read_text())
    passed_on = {
        name
        for one in document["services"].values()
        for name, value in one.get("environment", {}).items()
        if value is None
    }
    used = set(re.findall(r"\$\{([A-Z_]+)", compose.FILE.read_text())) | passed_on
    explained = {name for name, _, _ in _examples()}

    assert explained == used | {"COMPOSE_PROFILES"}


def test_the_example_shows_the_defaults_of_the_file() -> None:
    shown = {name: value for name, value, off in _examples() if value and not off}

    with_example = compose.load({**shown, **compose.REQUIRED})

    assert with_example == SERVICES


# -- Dockerfile --------------------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing() -> None:
    done = _run(
        [Path(sys.executable).with_name("hadolint"), "--failure-threshold", "style", DEPLOY / "Dockerfile"]
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_nobody_special_and_is_told_to_drain() -> None:
    runtime = _stages()["toolfleet"]

    assert re.findall(r"^USER (.*)$", runtime, re.MULTILINE) == ["10001:10001"]
    assert "USER" not in _stages()["app"], "the last stage stays the user it is"
    assert re.findall(r"^STOPSIGNAL (.*)$", runtime, re.MULTILINE) == ["SIGTERM"]
    for instruction in ("ENTRYPOINT", "CMD"):
        (words,) = re.findall(rf"^{instruction} (.*)$", runtime, re.MULTILINE)
        assert json.loads(words), "exec form, or signals end at a shell"
    (command,) = re.findall(r"^CMD (.*)$", runtime, re.MULTILINE)
    parse(json.loads(command)[1:])


def test_the_image_is_built_from_what_is_named() -> None:
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)
    stages = _stages()

    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)
    assert not re.search(r"^ADD ", DOCKERFILE, re.MULTILINE)
    assert not re.search(r"\b(apt-get|pip|curl|gcc)\b", _instructions(stages["toolfleet"])), (
        "nothing is built there"
    )
    allowed = {
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert copied == allowed
    assert all((compose.ROOT / name).exists() for name in copied)
    linked = {path.name for path in (compose.ROOT / "toolfleet").iterdir() if path.is_symlink()}
    assert linked <= copied, "a linked folder would be missing in the wheel"


def test_the_image_and_the_compose_file_ask_for_health_alike() -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*\n\s+CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)

    for one in ROLES.values():
        assert one["healthcheck"]["test"][1:] == json.loads(words)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
@pytest.mark.parametrize(("name", "variable"), [("keep", "HEALTH"), ("serve", "HTTP")])
def test_the_healthcheck_believes_the_process(name: str, variable: str, status: int, code: int) -> None:
    _, _, *words = SERVICES[name]["healthcheck"]["test"]
    with _answering(status) as port:
        environment = {f"TOOLFLEET_{variable}_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        done = _run([sys.executable, *words], environment)

    assert done.returncode == code, done.stderr


# -- systemd and the page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toolfleet.service", "toolfleet-worker@.service"])
def test_systemd_gives_a_worker_time_to_drain(name: str) -> None:
    unit = (DEPLOY / "systemd" / name).read_text()
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    default = Settings.model_fields["drain_s"].default

    assert float(timeout) >= default + COLD_S + RESERVE_S
    assert "Restart=always" in unit


def test_the_command_lines_of_the_page_are_those_of_the_program() -> None:
    lines = _shell_lines(OPERATIONS.read_text())

    ours = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("toolfleet ")]

    assert len(ours) > 8
    for words in ours:
        parse(words)


@pytest.mark.parametrize(
    "file", [OPERATIONS, DEPLOY / "README.md", DEPLOY / "env.example"], ids=lambda path: path.name
)
def test_every_setting_that_is_named_exists(file: Path) -> None:
    named = set(re.findall(r"\bTOOLFLEET_[A-Z_]+\b", file.read_text()))

    assert named - KNOWN - {"TOOLFLEET_IMAGE"} == set()


def parse(words: Sequence[str]) -> None:
    """Raises what the command line raises for words it does not know; runs nothing."""
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("toolfleet", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def test_the_parser_refuses_what_the_program_does_not_know() -> None:
    with pytest.raises(typer.TyperException):
        parse(["worker", "exec", "--teir", "low"])


def _run(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)


def _stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile by its name."""
    found = re.split(r"^FROM \S+ AS (\w+)\n", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def _instructions(stage: str) -> str:
    return "\n".join(line for line in stage.splitlines() if not line.startswith("#"))


def _examples() -> list[tuple[str, str, bool]]:
    """Name, value and whether it is commented out, of each variable in env.example."""
    found = re.findall(r"^(#?)([A-Z_]+)=(.*)$", ENV_EXAMPLE, re.MULTILINE)
    return [(name, value, bool(off)) for off, name, value in found]


def _shell_lines(page: str) -> list[str]:
    return [
        line.strip()
        for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]


@contextmanager
def _answering(status: int) -> Iterator[int]:
    """A server on loopback that answers every GET with that status; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
