"""Tools the runtime brings itself: their contracts. An agent has one of them where its list of tools names it."""

from __future__ import annotations

from typing import Final

from toolfleet.schemas.contract import ResultField
from toolfleet.schemas.tools import ToolSpec

PAGE_CHARS: Final = 4_000
PAGE_CHARS_MAX: Final = 12_000

READ_RESULT: Final = ToolSpec(
    name="read_result",
    description="Reads on in the result of an earlier tool call of this conversation that was too long to be shown whole.",
    use_when=("a result says that it was cut or shortened, and what you need is not in the part you have",),
    not_when=("the result was shown whole", "asking the tool again for less would do"),
    edge_cases=(
        "an offset at or after the end gives an empty text",
        "a reference this conversation does not have is answered with reason_code unknown_reference",
    ),
    returns="the text from offset on, total_chars, and next_offset (null at the end)",
    parameters={
        "type": "object",
        "properties": {
            "reference": {
                "type": "string",
                "description": "The reference that stands in the shortened result.",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "The first character to read, counted from 0.",
            },
            "length": {
                "type": "integer",
                "minimum": 1,
                "maximum": PAGE_CHARS_MAX,
                "default": PAGE_CHARS,
                "description": "How many characters to read.",
            },
        },
        "required": ["reference"],
        "additionalProperties": False,
    },
    sources={"reference": ("upstream",)},
    runner="loop",
    timeout_s=10.0,
    result_bytes_to_model=8
    * PAGE_CHARS_MAX,  # a page is cut by its characters; quoted once more it has more bytes
    result_fields=(
        ResultField(path="reference"),
        ResultField(path="offset"),
        ResultField(path="total_chars"),
        ResultField(path="next_offset"),
        ResultField(path="text", mark="untrusted", chars_max=PAGE_CHARS_MAX),
    ),
)
BUILTIN_TOOLS: Final = {READ_RESULT.name: READ_RESULT}


def summary_key(name: str) -> str:
    """What a backend knows the summariser of that tool by: no tool can be called so."""
    return f"{name}#summary"
