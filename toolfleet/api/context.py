"""What every route works with: the front doors of this process, and who is asking."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from toolfleet.access import Access, require
from toolfleet.api.problems import Problem, ProblemRaised, retry_after
from toolfleet.approving import Approving
from toolfleet.batching.front import Batches
from toolfleet.client import Client
from toolfleet.files import Files
from toolfleet.quotas import Quotas
from toolfleet.schemas.access import ANY, Key, RequestRate, Scope, Taken, among
from toolfleet.schemas.errors import KeyRefused
from toolfleet.schemas.ports import ToolPace

DEFAULT_TENANT: Final = "default"
WINDOW_S: Final = 60

bearer = HTTPBearer(
    auto_error=False, scheme_name="key", description="A key of `toolfleet keys create`: `Bearer tfk_…`."
)


@dataclass(slots=True)
class Api:
    """One process's front doors. `asks`: keys are required. `closing` is set when the process begins to end. `files` None:
    nothing says where they would be kept."""

    client: Client
    pace: ToolPace
    rate: RequestRate
    asks: bool
    streams_max: int
    files: Files | None = None
    uploads_max: int = 16
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    uploads: int = 0  # files that are coming in, or are being checked as batches
    batches: Batches = field(init=False)
    approving: Approving = field(init=False)
    access: Access = field(init=False)
    quotas: Quotas = field(init=False)

    def __post_init__(self) -> None:
        self.batches = Batches(self.client)
        self.approving = Approving(self.client.store, self.client.publish_due)
        self.access = Access(self.client.store)
        self.quotas = Quotas(self.client.store)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking. `tenant` None: may see every tenant's. `key` None: no keys are asked for."""

    api: Api
    key: Key | None
    token: str
    tenant: str | None

    @property
    def own_tenant(self) -> str:
        """Whose a new run is."""
        return DEFAULT_TENANT if self.tenant is None else self.tenant

    @property
    def name(self) -> str:
        return "" if self.key is None else self.key.name


def api_of(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


def needs(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, if their key is for that and its tenant may ask now."""

    async def caller(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)] = None,
        x_tenant: Annotated[
            str | None,
            Header(
                description="With a key of several tenants: for which of them.",
                min_length=1,
                max_length=128,
                pattern=r"^[\x21-\x7e]+$",
            ),
        ] = None,
    ) -> Caller:
        api = api_of(request)
        key, token = await _key(api, credentials, scope)
        tenant = _tenant(key, x_tenant)
        if tenant is not None:
            await _count(api, request, tenant)
        return Caller(api, key, token, tenant)

    return caller


async def _key(
    api: Api, credentials: HTTPAuthorizationCredentials | None, scope: Scope
) -> tuple[Key | None, str]:
    token = "" if credentials is None else credentials.credentials
    if not token and (api.asks or scope is Scope.APPROVE):  # whoever decides has a name, wherever it is
        raise KeyRefused(
            "no key was given",
            hint="Authorization: Bearer tfk_… (toolfleet keys create NAME)",
            reason="no_key",
        )
    if not token:
        return None, ""
    key = await api.access.holder(token)
    require(key, scope)
    return key, token


def _tenant(key: Key | None, wanted: str | None) -> str | None:
    """The tenant this request is about; None: all of them."""
    if key is None:
        return wanted
    if wanted is not None:
        if not among(wanted, key.tenants):
            raise KeyRefused(
                f"key {key.id} ({key.shown}…) does not work for tenant {wanted!r}",
                hint="Leave X-Tenant out, or use another key.",
                reason="wrong_tenant",
            )
        return wanted
    if ANY in key.tenants:
        return None
    if len(key.tenants) == 1:
        return key.tenants[0]
    raise ProblemRaised(
        Problem(
            400,
            "tenant_required",
            f"key {key.id} works for {len(key.tenants)} tenants",
            "Say for which one with the header X-Tenant.",
            param="x-tenant",
        )
    )


async def _count(api: Api, request: Request, tenant: str) -> None:
    """One request of the tenant, and the headers that say how many it has left. Raises a 429."""
    quota = await api.quotas.of(tenant)
    if quota is None or quota.requests_per_minute_max is None:
        return
    taken = await api.rate.take(tenant, quota.requests_per_minute_max)
    request.scope["toolfleet.headers"] |= rate_headers(taken)
    if not taken.allowed:
        raise ProblemRaised(
            Problem(
                429,
                "too_many_requests",
                f"tenant {tenant!r} may send {taken.limit} requests a minute",
                "Wait as long as Retry-After says.",
                param="requests_per_minute",
                headers=retry_after(taken.retry_after_s),
            )
        )


def rate_headers(taken: Taken) -> dict[str, str]:
    """In the words of draft-ietf-httpapi-ratelimit-headers-11, and in those of OpenAI's API."""
    reset = math.ceil(taken.reset_s)
    return {
        "RateLimit-Policy": f'"requests";q={taken.limit};w={WINDOW_S}',
        "RateLimit": f'"requests";r={taken.remaining};t={reset}',
        "x-ratelimit-limit-requests": str(taken.limit),
        "x-ratelimit-remaining-requests": str(taken.remaining),
        "x-ratelimit-reset-requests": f"{reset}s",
    }
