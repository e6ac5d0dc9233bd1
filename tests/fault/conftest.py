"""Stacks for the fault tests: one set of steady workers for a whole module, and stacks of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.stack import Stack, stack_of

OpenStack = Callable[[str], Stack]


@pytest.fixture(scope="module")
def open_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenStack]:
    """Opens a stack of that kind over the shared servers; all are closed at the end of the module."""
    with ExitStack() as opened:

        def open_(kind: str) -> Stack:
            folder: Path = tmp_path_factory.mktemp(kind)
            if kind == "embedded":
                return opened.enter_context(stack_of(kind, folder))
            database = request.getfixturevalue("postgresql")
            broker = request.getfixturevalue("redis" if kind == "streams" else "rabbitmq")
            return opened.enter_context(
                stack_of(kind, folder, database_server=database, broker_server=broker)
            )

        yield open_
