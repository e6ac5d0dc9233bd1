"""Log lines of the workers that live in a command: on stderr, where they do not mix with results."""

from __future__ import annotations

import sys


def configure_logs(*, level: str) -> None:
    """structlog to stderr from `level` on: JSON where TOOLFLEET_LOG_FORMAT says so, else for people, with colours only
    on a terminal. Configured before the settings are read, so that their errors are shown in the same form."""
    import logging
    import os

    import structlog

    if os.environ.get("TOOLFLEET_LOG_FORMAT", "").lower() == "json":
        from toolfleet.adapters.telemetry.logs import configure_json

        configure_json(level=getattr(logging, level.upper()))
        return
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever stderr is by then
        cache_logger_on_first_use=False,
    )


def log_level() -> str:
    """The level of workers (TOOLFLEET_LOG_LEVEL), asked before an app is loaded. Raises UnsafeSettings."""
    from toolfleet.settings import load_settings

    return load_settings().log_level
