"""What the handlers log, as part of the story; an exception they did not expect is a violation."""

from __future__ import annotations

import sys
from typing import Any

import structlog

from tests.simulation.process import current
from tests.simulation.story import Story
from toolfleet.schemas.errors import BrokerUnavailable, StoreUnavailable

_EXPECTED = (StoreUnavailable, BrokerUnavailable)


class Logs:
    """Takes the place of the logging configuration while a world lives."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._before = structlog.get_config()
        # All of it: what somebody configured before must not decide which lines a story has.
        structlog.configure(
            processors=[self._take],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            context_class=dict,
            logger_factory=structlog.PrintLoggerFactory(),
            cache_logger_on_first_use=False,
        )

    def __exit__(self, *_: object) -> None:
        structlog.configure(**self._before)

    def _take(self, logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        process = current()
        exc = event.pop("exc_info", None)
        if exc is True:
            exc = sys.exc_info()[1]
        name = event.pop("event")
        fields = " ".join(f"{key}={value}" for key, value in event.items())
        self._story.say(
            process.name if process else "-",
            f"log {name} {fields} {exc!r}" if exc else f"log {name} {fields}",
        )
        if isinstance(exc, Exception) and not isinstance(exc, _EXPECTED):
            self._story.violation("handler", f"{name}: {exc!r}")
        raise structlog.DropEvent
