"""Every case of the corpus comes to the outcome that is right for it. TOOLFLEET_CASES gives other cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.corpus import cases, registry, run
from tests.corpus.registry import PASSED, Verdict, checkers, failed, refused, run_file

PRESENT = cases.names()


@pytest.mark.parametrize("name", [name for name in checkers() if name in PRESENT])
def test_no_case_of_the_file_fails(name: str) -> None:
    result = run_file(name, checkers()[name])

    assert result.cases > 0
    assert result.failures == []
    assert result.failed == 0


def test_every_checker_has_a_file_among_our_own_cases_and_every_file_a_checker() -> None:
    own = cases.names(cases.OWN_FOLDER)

    assert own == list(checkers())


def test_the_counts_are_those_of_the_verdicts(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    lines = [
        {"id": "a", "is": "passed"},
        {"id": "b", "is": "refused"},
        {"id": "c", "is": "failed"},
        {"id": "d"},
    ]
    (tmp_path / "part" / "some.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")

    def check(case: cases.Case) -> Verdict:
        return {"passed": PASSED, "refused": refused("a-rule"), "failed": failed("differs")}[case["is"]]

    result = run_file("part/some.jsonl", check, tmp_path)

    assert cases.names(tmp_path) == ["part/some.jsonl"]
    assert (result.cases, result.passed, result.refused, result.failed) == (4, 1, 1, 2)
    assert result.refusals == {"a-rule": 1}
    assert result.failures == [{"id": "c", "why": "differs"}, {"id": "d", "why": "KeyError: 'is'"}]


def test_a_file_has_one_checker() -> None:
    name = next(iter(checkers()))

    with pytest.raises(ValueError, match="has a checker already"):
        registry.checker(name)(lambda case: PASSED)


def test_the_runner_writes_what_it_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "schemas/mcp_tools.jsonl"
    case = next(cases.read(name, cases.OWN_FOLDER))
    target = tmp_path / "cases" / name
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(case) + "\n")
    (tmp_path / "cases" / "odd").mkdir()
    (tmp_path / "cases" / "odd" / "other.jsonl").write_text("{}\n")
    monkeypatch.setenv("TOOLFLEET_CASES", str(tmp_path / "cases"))

    code = run.main(["--out", str(tmp_path / "corpus.json")])

    report = json.loads((tmp_path / "corpus.json").read_text())
    assert code == 0
    assert report["files"][name]["cases"] == 1
    assert report["unchecked"] == ["odd/other.jsonl"]
    assert set(report["missing"]) == set(checkers()) - {name}
    assert name in capsys.readouterr().out


def test_another_folder_of_the_same_shape_is_read_whatever_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of the files, their cases in another order and under other ids and names; a broken line, a torn file."""
    root = tmp_path / "cases"
    for name in ("llm/errors.jsonl", "llm/local_gemma.jsonl", "calls/bfcl_multi_turn.jsonl"):
        some = list(cases.read(name, cases.OWN_FOLDER))[::-1][:9]
        text = "\n".join(json.dumps({**case, "id": f"other-{n}"}) for n, case in enumerate(some))
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\ufeff" + text.replace("airline", "harbour"), encoding="utf-8")
    with (root / "llm/errors.jsonl").open("ab") as file:
        file.write(b'\n{"id": "cut\n\xff\xfe\n[]\n')
    whole = (cases.OWN_FOLDER / "llm/issue_payloads.jsonl.gz").read_bytes()
    (root / "llm/issue_payloads.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setenv("TOOLFLEET_CASES", str(root))

    code = run.main(["--out", str(tmp_path / "corpus.json")])

    report = json.loads((tmp_path / "corpus.json").read_text())
    errors, torn = report["files"]["llm/errors.jsonl"], report["files"]["llm/issue_payloads.jsonl"]
    assert code == 1
    assert (errors["cases"], errors["passed"], errors["failed"]) == (12, 9, 3)
    assert [failure["id"] for failure in errors["failures"]] == ["line 10", "line 11", "line 12"]
    assert torn["failures"][-1]["id"].startswith("behind line ")
    assert report["files"]["llm/local_gemma.jsonl"]["failed"] == 0
    assert report["files"]["calls/bfcl_multi_turn.jsonl"]["refusals"] == {"no-file-of-its-tools": 9}
    assert "schemas/mcp_tools.jsonl" in report["missing"]
    assert "FAILED  line 10: no JSON" in capsys.readouterr().out


def test_a_folder_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLFLEET_CASES", str(tmp_path / "nowhere"))

    assert run.main(["--out", str(tmp_path / "corpus.json")]) == 2
    assert not (tmp_path / "corpus.json").exists()
