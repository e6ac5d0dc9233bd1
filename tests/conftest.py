"""What every test of the project shares: the hypothesis profile, and the servers that are started once for all.

A test that needs a server which is not on the machine is not run, and says so; TOOLFLEET_REQUIRE=redis,… makes it fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import servers

FAULTS = "tests/fault/"

# The suites that several files run; before any of them is imported.
for suite in ("message_layer_suite", "tool_pace_suite", "governor_suite"):
    pytest.register_assert_rewrite(f"tests.contract.{suite}")

# Loaded by name because hypothesis would choose a profile without randomness where CI is set: CI has to look
# for new examples as a developer does. The printed blob repeats a failure; pytest-timeout is the deadline, a
# time per example would only make a slow machine look like a bug.
settings.register_profile("toolfleet", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("toolfleet")

# Models of tests have no price; those that are about prices say so themselves.
os.environ.setdefault("TOOLFLEET_UNPRICED", "ok")


def require(kind: str) -> None:
    """Skip, or fail where TOOLFLEET_REQUIRE names it, when that server is not on this machine."""
    reason = servers.missing(kind)
    if reason is None:
        return
    if kind in os.environ.get("TOOLFLEET_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and TOOLFLEET_REQUIRE asks for it")
    pytest.skip(reason)  # a machine without that server runs all the rest; CI sets TOOLFLEET_REQUIRE


class ByFile(LoadScopeScheduling):
    """How `make test` shares out the tests: the fault suite goes to one process, the other files one by one.

    Two fault tests side by side would have twice as many worker processes wait for the two cores of a small machine.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return FAULTS if file.startswith(FAULTS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


@pytest.hookimpl(trylast=True)  # after the shuffling
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fault suite is the longest of what is shared out, so it begins first."""
    items.sort(key=lambda item: not item.nodeid.startswith(FAULTS))


@pytest.fixture(scope="session")
def redis() -> Iterator[servers.Server]:
    """A Redis or Valkey that all tests share: keep to keys of your own, or use `servers.redis_server()`."""
    require("redis")
    with servers.redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.Server]:
    """A PostgreSQL cluster that all tests share: `servers.new_database(postgresql)` is one of your own."""
    require("postgresql")
    with servers.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[servers.Server]:
    """A RabbitMQ node that all tests share: keep to queues of your own, or use `servers.rabbitmq_server()`."""
    require("rabbitmq")
    with servers.rabbitmq_server() as server:
        yield server
