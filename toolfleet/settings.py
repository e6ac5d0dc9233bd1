"""One frozen settings object, read once by the command line and by `Fleet`; nothing else reads the environment.

Every field can be set as TOOLFLEET_<NAME>. The model's server and key are those of the official client:
OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolfleet.queues.policy import CLAIM_S
from toolfleet.schemas.batches import FILE_BYTES_MAX, IN_FLIGHT_MAX
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.files import TENANT_BYTES_MAX
from toolfleet.schemas.limits import (
    BREAKER_CALLS_MIN,
    BREAKER_FAILURES_SHARE,
    BREAKER_OPEN_S,
    BREAKER_WINDOW_S,
    KEEPER_PERIOD_S,
    LEASE_S,
)
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.pace import Quota


class ModelServerSettings(BaseModel):
    """A server that models are asked at as `name:model` (docs/providers.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str | None = Field(default=None, description="unset: that of the profile")
    profile: str | None = Field(default=None, description="unset: of the server's own name, else of its host")
    api_key_env: str | None = Field(
        default=None, description="variable of its key; unset: that of the profile"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="fields of the profile that are otherwise"
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="more headers, anthropic-beta for one"
    )


class Settings(BaseSettings):
    """What a process of the fleet is told. Times are seconds."""

    model_config = SettingsConfigDict(
        env_prefix="TOOLFLEET_", frozen=True, extra="forbid", populate_by_name=True
    )

    database: str = Field(default="sqlite:///toolfleet.db", description="SQLAlchemy URL; the truth")
    broker: str = Field(
        default="memory://",
        description="message layer: memory:// (embedded, one process), redis://host:6379/0, amqp://user:pw@host//",
    )
    broker_prefix: str = Field(
        default="toolfleet",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="names of everything in the broker begin with it; one for each fleet that shares a broker",
    )
    cache: str | None = Field(
        default=None,
        description="breakers, rates, quotas: redis://host:6379/0, or memory:// (each process counts for itself); unset: "
        "the broker if it is a Redis",
    )
    model_quotas: dict[str, Quota] = Field(
        default_factory=dict,
        description='by model ("*": every other): {"gpt-4.1-mini": {"requests": 500, "tokens": 200000}}, per minute; '
        "unset: what the provider says in its answers",
    )
    prices: Path | None = Field(
        default=None,
        description='JSON file of prices that go before the table: {"model": {"input_usd": 0.5, "output_usd": 1.5}}',
    )
    unpriced: Literal["refuse", "ok"] = Field(
        default="refuse",
        description="ok: a model without a known price costs nothing, and no limit of cost holds",
    )
    breaker_calls_min: int = Field(
        default=BREAKER_CALLS_MIN, ge=1, description="attempts within the window before a breaker may open"
    )
    breaker_failures_share: float = Field(
        default=BREAKER_FAILURES_SHARE, gt=0, le=1, description="share of them that failed at which it opens"
    )
    breaker_window_s: float = Field(default=BREAKER_WINDOW_S, gt=0)
    breaker_open_s: float = Field(
        default=BREAKER_OPEN_S, gt=0, description="how long it stays open; then one probe is let through"
    )
    celery_broker: str | None = Field(
        default=None,
        description="broker of control tasks and `celery inspect`; unset: the message layer's server",
    )
    approvals: Literal["required", "off"] = Field(
        default="required", description="off: tools above medium run without asking anybody"
    )
    tool_tiers: dict[str, Tier] = Field(
        default_factory=dict,
        description='tiers of tools that are higher here than declared: {"send_mail": "irreversible"}; a lower one is '
        "refused",
    )
    signing_keys: SecretStr | None = Field(
        default=None, description="key_id:hex,key_id:hex; the first signs, all verify; embedded makes its own"
    )
    decide_slots: int = Field(
        default=300, ge=1, description="model calls at a time in one process, for each lane"
    )
    exec_slots: int = Field(default=64, ge=1, description="tool calls at a time in one process, per tier")
    children: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 2),
        ge=1,
        description="processes for plain-function tools, of each tier",
    )
    lease_s: float = Field(default=LEASE_S, gt=0, description="how long a silent worker keeps a step")
    claim_s: float | None = Field(
        default=None,
        gt=0,
        description="after how long the broker gives a silent worker's messages to others; unset: 2/3 of lease_s",
    )
    keeper_period_s: float = Field(default=KEEPER_PERIOD_S, gt=0)
    batch_in_flight_max: int = Field(
        default=IN_FLIGHT_MAX, ge=1, description="items of all batches at work at a time, in the whole fleet"
    )
    drain_s: float = Field(
        default=20.0, ge=0, description="how long a stopping process waits for steps in flight"
    )
    loop_blocked_s: float = Field(
        default=30.0,
        gt=1,
        description="a worker whose event loop stands still for that long (a tool with runner='loop' that blocks) ends",
    )
    health_host: str = Field(
        default="127.0.0.1", description="where a worker answers /live, /ready, /metrics"
    )
    health_port: int | None = Field(
        default=None, ge=0, le=65535, description="its port; 0 takes a free one; unset: it answers nowhere"
    )
    http_host: str = Field(
        default="127.0.0.1", description="where `toolfleet serve` and `up --http-port` answer"
    )
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the HTTP API; 0 takes a free one; unset: `up` has none",
    )
    http_auth: Literal["auto", "required", "off"] = Field(
        default="auto", description="keys of the HTTP API; auto: required, but for `up` on a loopback address"
    )
    http_body_bytes_max: int = Field(
        default=2_200_000, ge=1000, description="of a request, refused before it is parsed"
    )
    http_body_s: float = Field(default=20.0, gt=0, description="how long a request may take to come in whole")
    files: Path | None = Field(
        default=None,
        description="folder of files that are handed in over HTTP, the same for every replica; unset: beside the file of an "
        "SQLite database, and none with PostgreSQL",
    )
    http_file_bytes_max: int = Field(default=FILE_BYTES_MAX, ge=1, description="of one such file")
    files_tenant_bytes_max: int = Field(
        default=TENANT_BYTES_MAX, ge=1, description="of all files of a tenant that are kept"
    )
    http_upload_s: float = Field(
        default=900.0, gt=0, description="how long a file may take to come in whole; a pause: http_body_s"
    )
    http_uploads_max: int = Field(default=16, ge=1, description="files coming in at a time in one process")
    http_streams_max: int = Field(default=500, ge=1, description="event streams at a time in one process")
    traces: Literal["auto", "on", "off"] = Field(
        default="auto", description="spans over OTLP/HTTP; auto: where an OTEL_EXPORTER_OTLP_ENDPOINT is set"
    )
    trace_content: Literal["off", "on"] = Field(
        default="off", description="on: prompts, arguments and results are exported with the spans"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="lines of `toolfleet up` and `toolfleet worker`"
    )
    otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp_endpoint")
    )
    otlp_traces_endpoint: str | None = Field(
        default=None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "otlp_traces_endpoint"),
    )
    otel_disabled: bool = Field(
        default=False, validation_alias=AliasChoices("OTEL_SDK_DISABLED", "otel_disabled")
    )
    spans_max: int = Field(
        default=8192, ge=1, validation_alias=AliasChoices("OTEL_BSP_MAX_QUEUE_SIZE", "spans_max")
    )
    spans_batch: int = Field(
        default=512, ge=1, validation_alias=AliasChoices("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "spans_batch")
    )
    spans_delay_ms: int = Field(
        default=5000, ge=1, validation_alias=AliasChoices("OTEL_BSP_SCHEDULE_DELAY", "spans_delay_ms")
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="of `toolfleet up` and `toolfleet worker`, on stderr"
    )
    fault_point: str | None = Field(
        default=None,
        description="for fault tests: NAME or NAME:N kills this process there, at the Nth time; NAME:N:stop stops it",
    )
    model_servers: dict[str, ModelServerSettings] = Field(
        default_factory=dict,
        description="servers of models by name: JSON of {name: {base_url, profile, api_key_env, options, headers}}",
    )
    openai_base_url: str | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url")
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key")
    )

    @property
    def traced(self) -> bool:
        """Whether spans are made."""
        if self.otel_disabled or self.traces == "off":
            return False
        return self.traces == "on" or bool(self.otlp_endpoint or self.otlp_traces_endpoint)

    @property
    def otlp_traces_url(self) -> str | None:
        """The whole URL spans go to; None: the exporter's default, this machine."""
        if self.otlp_traces_endpoint or not self.otlp_endpoint:
            return self.otlp_traces_endpoint
        return f"{self.otlp_endpoint.rstrip('/')}/v1/traces"

    @property
    def broker_claim_s(self) -> float:
        """`claim_s`, or what follows from the lease."""
        return self.lease_s * CLAIM_S / LEASE_S if self.claim_s is None else self.claim_s


def key_of(variable: str) -> str | None:
    """The API key in that variable of the environment, or None."""
    return os.environ.get(variable) or None


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment, with overrides that are not None. Raises UnsafeSettings naming the field."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = Settings(**given)  # type: ignore[arg-type]  # pydantic parses them
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnsafeSettings(
            f"setting {where!r}: {first['msg']}",
            hint=f"Set it as an argument or as TOOLFLEET_{where.upper()}.",
        ) from None
    return settings
