"""Spans over OTLP/HTTP, set up by the standard OTEL_… environment of the SDK: headers, timeout, TLS, sampler.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and …/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler


def otlp_exporter(endpoint: str | None) -> SpanExporter:
    """`endpoint` is the whole URL; None: what the environment says, else this machine."""
    return OTLPSpanExporter(endpoint=endpoint)


def sampler_of_environment() -> Sampler:
    """OTEL_TRACES_SAMPLER and …_ARG, read as the SDK reads them; default: what the caller sampled, else all."""
    return TracerProvider(shutdown_on_exit=False).sampler
