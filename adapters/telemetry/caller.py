"""The trace context of whoever calls us, if their program is traced. Costs nothing where it is not."""

from __future__ import annotations

import sys

from toolfleet.adapters.telemetry.ids import Traceparent


def trace_of_caller() -> Traceparent | None:
    """The current span of the calling context; None where no OpenTelemetry is loaded or no span is current."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return Traceparent(
        context.trace_id, context.span_id, context.trace_flags.sampled, context.trace_state.to_header()
    )
