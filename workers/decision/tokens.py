"""Tokens of a text, counted without a network: exactly with the package bpe-openai (an extra), else estimated upwards.

What a provider counts in the end is in `usage`; this is for budgets, which have to be known beforehand.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

BYTES_PER_TOKEN: Final = 3.0  # a low estimate on purpose: a reservation is rather too high than too low
_OLD_ENCODING: Final = ("gpt-3.5", "gpt-4-", "gpt-35")  # cl100k_base; all later models of OpenAI: o200k_base
_TEXTS_KEPT: Final = 4_096  # counts of history items, which come again in every turn


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts texts for one model. `name` says how: the encoding, or `estimate`.

    For models of other makers the encoding is an approximation: theirs are not published.
    """

    name: str
    count: Callable[[str], int]


def estimated_tokens(byte_count: int) -> int:
    """Tokens of that many bytes of text, estimated upwards."""
    return int(byte_count / BYTES_PER_TOKEN) + 1


def counter_for(model: str) -> TokenCounter:
    """The best counter installed for that model."""
    old = model == "gpt-4" or (model.startswith(_OLD_ENCODING) and not model.startswith("gpt-4-o"))
    return _counter("cl100k_base" if old else "o200k_base")


def estimating() -> TokenCounter:
    """The counter that needs nothing installed."""
    return _ESTIMATE


@functools.cache
def _counter(encoding: str) -> TokenCounter:
    if importlib.util.find_spec("bpe_openai") is None:
        return _ESTIMATE
    return TokenCounter(encoding, functools.partial(_exact, encoding))


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def _exact(encoding: str, text: str) -> int:
    return len(_tokenizer(encoding).encode_ordinary(text))


@functools.cache
def _tokenizer(encoding: str) -> Any:
    """Loaded when something is counted first: it takes a second or two, so not on an event loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of how the package opens its own files
        import bpe_openai

        return bpe_openai.get_encoding(encoding)


def _estimate(text: str) -> int:
    return estimated_tokens(len(text.encode(errors="replace"))) if text else 0


_ESTIMATE: Final = TokenCounter("estimate", _estimate)
