"""Tools ranked by the words of the user: names written together, several languages, nothing that fits."""

from __future__ import annotations

from typing import Any

import pytest

from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.policy import retrieve
from toolfleet.workers.decision.policy.retrieve import ranked, words


def _tool(name: str, description: str, **parameters: Any) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {key: {"description": text} for key, text in parameters.items()},
    }
    return ToolSpec(name=name, description=description, parameters=schema)


TOOLS = (
    _tool("github_list_prs", "Lists the pull requests of a repository."),
    _tool("sendEmail", "Writes to somebody.", recipient="who gets the mail"),
    _tool("get_order", "查询指定订单的当前状态、物流节点和预计送达时间。"),
    _tool("get_weather", "查询指定城市当前天气。"),
)


@pytest.mark.parametrize(
    ("said", "best"),
    [
        ("show me the open pull requests", "github_list_prs"),
        ("send an email to bob", "sendEmail"),
        ("who is the recipient?", "sendEmail"),
        ("帮我查一下北京今天的天气", "get_weather"),
        ("我的订单到哪里了 物流状态", "get_order"),
    ],
)
def test_the_tool_that_fits_comes_first(said: str, best: str) -> None:
    assert ranked(TOOLS, said)[0] == best


@pytest.mark.parametrize("said", ["", "zzz qqq", "!!!", "\ud83d\ude00"])
def test_where_nothing_fits_the_order_is_that_of_the_definitions(said: str) -> None:
    assert ranked(TOOLS, said) == [tool.name for tool in TOOLS]


def test_every_tool_is_ranked_once() -> None:
    assert sorted(ranked(TOOLS, "orders and weather")) == sorted(tool.name for tool in TOOLS)


def test_words_are_cut_out_of_names_and_of_scripts_without_blanks() -> None:
    assert words("getHTTPStatus list_prs") == ["get", "http", "statu", "list", "prs"]
    assert words("查订单") == ["查订", "订单"]
    assert words("単") == ["単"]


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieve, "available", lambda: False)

    with pytest.raises(InvalidDefinition, match=r"toolfleet\[retrieval\]"):
        ranked(TOOLS, "anything")
