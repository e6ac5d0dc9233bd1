"""Every rule a note or a refusal can name: what it is about, and which of a provider's facts it rests on. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from toolfleet.adapters.llm.strict.profiles import Fact, StrictProfile

KEPT_LOCAL: Final = "kept_local."


@dataclass(frozen=True, slots=True)
class Rule:
    """`fact` is a key of the profile's facts; empty where it follows from JSON Schema alone."""

    about: str
    fact: str = ""


NOTES: Final[Mapping[str, Rule]] = {
    "type_name": Rule("a type of another language is read as the one of JSON Schema"),
    "nullable": Rule("nullable: true is written as the type null"),
    "draft_3": Rule("required: true at a property is listed at its object"),
    "draft_4": Rule("a boolean exclusive limit is written as a limit of its own"),
    "tuple_items": Rule("a list under items is written as prefixItems"),
    "beside_ref": Rule("what stands beside a reference says nothing in drafts up to 7, and is left out"),
    "type_inferred": Rule("a schema without type gets the one its keywords are about", "keyword"),
    "optional": Rule("a property that may be absent is required and takes null for absent", "optional"),
    "optional_left_out": Rule("a property that may be absent stays out of required", "optional"),
    "null_and_absent": Rule("null is a value of its own, so absent is written another way", "optional"),
    "property_forbidden": Rule("a property that may never be there is not sent", "keyword"),
    "required_undeclared": Rule("a required property that is not declared is declared", "optional"),
    "closed_object": Rule("the model may send no property that is not declared", "closed_object"),
    "map_as_list": Rule(
        "an object of any names is a list of entries, and comes back as it was", "closed_object"
    ),
    "others_as_list": Rule(
        "undeclared properties are a list of entries beside the declared ones", "closed_object"
    ),
    "free_form": Rule("a value of any type: a definition that leads to itself", "recursion"),
    "json_text": Rule("a value of any type is written as a JSON text, and checked locally", "recursion"),
    "recursion_as_text": Rule(
        "a schema inside itself is written as a JSON text, and checked locally", "recursion"
    ),
    "enum_as_text": Rule("listed values made of parts are listed as JSON texts", "enum"),
    "tuple_as_list": Rule("a list whose places are all alike is a list of that length", "keyword"),
    "one_of": Rule("oneOf is sent as anyOf; that only one branch fits is checked locally", "keyword"),
    "branch_dropped": Rule("a branch no value can fit is not sent", "keyword"),
    "root_wrapped": Rule("what is no plain object stands inside one, and is unwrapped again", "root_object"),
    "property_alias": Rule(
        "a name the provider refuses gets an alias, and comes back as it was", "property_name"
    ),
}
REFUSALS: Final[Mapping[str, Rule]] = {
    "unsatisfiable": Rule("the schema contradicts itself: no value can fit"),
    "unknown_type": Rule("a type nobody knows"),
    "external_ref": Rule("a reference to another document", "ref"),
    "dangling_ref": Rule("a reference that leads nowhere", "ref"),
    "dynamic_ref": Rule("a reference whose target depends on the way to it", "ref"),
    "endless_ref": Rule("references that lead to each other without an end", "ref"),
    "no_schema": Rule("what stands there is no schema"),
    "no_json": Rule("a value that is no JSON"),
    "bad_keyword": Rule("a keyword of the wrong form"),
    "too_deep": Rule("schemas nested deeper than any reader goes"),
    "too_large": Rule("a schema that unfolds without measure"),
    "broken_schema": Rule("a schema no validator can compile, so nothing could be checked"),
    "tuple": Rule("a list whose places differ", "keyword"),
    "all_of": Rule("parts that all have to hold and cannot be written as one", "keyword"),
    "alias_collision": Rule("two names that would be one on the wire", "tool_name"),
    "marker_collision": Rule("a property with the name that stands for absent", "optional"),
    "limit.properties": Rule("more properties than the provider takes", "limit.properties"),
    "limit.depth": Rule("deeper than the provider takes", "limit.depth"),
    "limit.enum_values": Rule("more listed values than the provider takes", "limit.enum_values"),
    "limit.string_chars": Rule(
        "more characters in names and values than the provider takes", "limit.string_chars"
    ),
    "limit.long_enum": Rule("a longer list of texts than the provider takes", "limit.long_enum"),
    "limit.optional": Rule("more optional properties than the provider takes", "limit.optional"),
    "limit.unions": Rule("more unions than the provider takes", "limit.unions"),
    "request_limit": Rule("the tools before it leave no room in the request", "strict_tools"),
}


def rule_of(rule_id: str) -> Rule:
    """The rule of that id. Raises KeyError for one there is not."""
    if rule_id.startswith(KEPT_LOCAL):
        keyword = rule_id.removeprefix(KEPT_LOCAL)
        return Rule(f"`{keyword}` is not sent, and checked locally", _KEPT_FACTS.get(keyword, "keyword"))
    return NOTES[rule_id] if rule_id in NOTES else REFUSALS[rule_id]


_KEPT_FACTS: Final[Mapping[str, str]] = {"pattern": "pattern", "format": "format", "minItems": "min_items"}


def fact_of(rule_id: str, profile: StrictProfile) -> Fact | None:
    """What the provider says that the rule rests on; None where it follows from JSON Schema alone."""
    return profile.facts.get(rule_of(rule_id).fact)
