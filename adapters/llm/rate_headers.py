"""What a provider says of its limits in the headers of an answer."""

from __future__ import annotations

from collections.abc import Mapping

from toolfleet.schemas.pace import RateHint

# OpenAI and most compatible servers; Anthropic's own (docs of both, "Rate limits"). Later names win nothing: the first
# that is there counts.
_NAMES = {
    "limit_requests": ("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit"),
    "remaining_requests": ("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining"),
    "limit_tokens": ("x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit"),
    "remaining_tokens": ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining"),
}


def rate_hint(headers: Mapping[str, str]) -> RateHint | None:
    """The limits in these headers, or None. What is no whole number is left out: some servers send fractions, words
    or a negative rest."""
    found = {field: _count(headers, names) for field, names in _NAMES.items()}
    return RateHint(**found) if any(value is not None for value in found.values()) else None


def _count(headers: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = (headers.get(name) or "").strip()
        if text.isascii() and text.isdecimal() and len(text) < 16:
            return int(text)
    return None
