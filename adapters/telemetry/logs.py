"""Log lines as JSON, one object a line: for a collector that reads stderr. Names of fields: names.py.

A line holds ids, names and numbers, never prompts, arguments, results or injected context; tracebacks are without the
values of local variables. Lines of libraries (celery, aiohttp, the exporter) come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import orjson
import structlog
from structlog.typing import Processor

_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure_json(*, level: int) -> None:
    """structlog and the standard library's logging to stderr, as JSON."""
    renderer = structlog.processors.JSONRenderer(serializer=_dumps)
    structlog.configure(
        processors=[*_SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: _Named(*names),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


class _Named(structlog.PrintLogger):
    """Writes to whatever stderr is by then, and knows the name it was asked for."""

    def __init__(self, name: str = "toolfleet") -> None:
        super().__init__(sys.stderr)
        self.name = name


def _dumps(value: object, **options: Any) -> str:
    return orjson.dumps(value, default=options.get("default", str)).decode()
