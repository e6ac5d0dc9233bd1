"""Names a provider does not take -> names it takes, and back: the same in every process, whatever else is there.

Pure. A name that is taken stays as it is. Any other becomes what is left of it and a hash of all of it, so that two
names never meet by being cut or cleaned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from toolfleet.adapters.llm.strict.profiles import StrictProfile
from toolfleet.schemas.dialects import SchemaRefused

_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_HASH_CHARS: Final = (
    8  # 32 bits: two of 1,000 foreign names meet once in 8,600 toolsets, and then it is an error
)
_CHARS_MAX: Final = 64


def alias_of(name: str) -> str:
    """The alias of a name that cannot be sent: at most 64 letters, digits, _ and -, told by the name alone."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    kept = _FOREIGN.sub("_", name).strip("_")[: _CHARS_MAX - _HASH_CHARS - 1]
    return f"{kept or 'name'}_{digest}"


def wire_name(name: str, profile: StrictProfile) -> str:
    """What a tool is called on the wire of that provider."""
    return name if profile.takes_tool_name(name) else alias_of(name)


def wire_names(names: Iterable[str], profile: StrictProfile) -> Mapping[str, str]:
    """Name on the wire -> our name, for one toolset. Raises SchemaRefused where two would be called the same."""
    found: dict[str, str] = {}
    for name in names:
        wire = wire_name(name, profile)
        if found.setdefault(wire, name) != name:
            raise SchemaRefused(
                "", "alias_collision", f"{name!r} and {found[wire]!r} are both {wire!r} on the wire"
            )
    return found


def property_aliases(names: Iterable[str], profile: StrictProfile, path: str) -> Mapping[str, str]:
    """Name of a property -> its name on the wire, for one object. Raises SchemaRefused as `wire_names` does."""
    given = list(names)
    found = {name: name if profile.takes_property_name(name) else alias_of(name) for name in given}
    if len(set(found.values())) != len(given):
        raise SchemaRefused(
            path, "alias_collision", "two of its properties would have the same name on the wire"
        )
    return found
