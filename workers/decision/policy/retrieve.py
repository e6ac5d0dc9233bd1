"""Tools ranked by how well they fit what the user said (BM25), for toolsets too large to offer whole. Pure.

The ranking itself is the package bm25s, an extra (`toolfleet[retrieval]`); the cutting into words is ours, because the
names of tools are written together and not every language puts blanks between words.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.tools import ToolSpec

QUERY_CHARS_MAX: Final = 4_000  # of the newest words; older ones say little about what is wanted now
INSTALL: Final = "Install it: pip install 'toolfleet[retrieval]'."
_NAME_WEIGHT: Final = 3  # a word of the name says more than one of the description
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_TOGETHER: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]")
_INDEXES_MAX: Final = 64


def available() -> bool:
    """Whether the ranking is installed."""
    return importlib.util.find_spec("bm25s") is not None


def ranked(tools: Sequence[ToolSpec], query: str) -> list[str]:
    """The names of all tools, the best fit first; equal ones in the order of the definitions.

    Raises InvalidDefinition where bm25s is not installed.
    """
    if not available():
        raise InvalidDefinition("control.top_k needs the package bm25s, which is not here", hint=INSTALL)
    scores = _scores(tuple(_document(tool) for tool in tools), tuple(words(query[-QUERY_CHARS_MAX:])))
    order = sorted(range(len(tools)), key=lambda position: (-scores[position], position))
    return [tools[position].name for position in order]


def words(text: str) -> list[str]:
    """Words in lower case: parts of names for themselves, and pairs of characters where a script has no blanks."""
    found: list[str] = []
    for word in _WORDS.findall(text):
        if _TOGETHER.search(word):
            found.extend(word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            found.append(_stem(word.lower()))
    return found


def _stem(word: str) -> str:
    """Orders and order are one word; no more than that, for other languages come this way as well."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _scores(documents: tuple[tuple[str, ...], ...], query: tuple[str, ...]) -> list[float]:
    index, known = _index(documents)
    asked = [word for word in query if word in known]
    if not asked:
        return [0.0] * len(documents)
    return [float(score) for score in index.get_scores(asked)]


@functools.lru_cache(maxsize=_INDEXES_MAX)
def _index(documents: tuple[tuple[str, ...], ...]) -> tuple[Any, frozenset[str]]:
    import bm25s

    index = bm25s.BM25()
    index.index([list(document) for document in documents], show_progress=False)
    return index, frozenset(word for document in documents for word in document)


def _document(tool: ToolSpec) -> tuple[str, ...]:
    text = " ".join([tool.description, *_described(tool.parameters)])
    return (*(words(tool.name) * _NAME_WEIGHT), *words(text), "\0")  # never empty: the index refuses it


def _described(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in properties.items():
            yield name
            if isinstance(inner, Mapping) and isinstance(inner.get("description"), str):
                yield inner["description"]
