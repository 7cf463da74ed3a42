# SPDX-License-Identifier: Apache-2.0
"""The models, their runs, what model/README.md says and the code belong together; and a search that shows nothing fails."""

from __future__ import annotations

import importlib.util
import re
import sys

from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from hostflag._hostflag import lib


ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = (ROOT / "model" / "README.md").read_text(encoding="utf-8")
MODELS: Final = ("handoff", "two_sessions")


def load(name: str) -> ModuleType:
    """Import a script beside its siblings."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


runs = load("model_runs")
checker = load("check_model")


def source(model: str) -> str:
    return (ROOT / "model" / f"{model}.pml").read_text(encoding="utf-8")


def section(title: str) -> list[list[str]]:
    """Return the rows of the tables under a heading of README.md, without their heads."""
    text = re.split(r"^## ", README.partition(f"## {title}")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    rules = [i for i, row in enumerate(rows) if set(row[0]) == {"-"}]
    return [row for i, row in enumerate(rows) if i not in rules and i + 1 not in rules]


def names(text: str) -> set[str]:
    return set(re.findall(r"\bM_[A-Z0-9]+", text))


@pytest.mark.parametrize("model", MODELS)
def test_every_mutation_of_a_model_is_one_that_must_be_found(model: str) -> None:
    found = {name for run in runs.QUICK if run.model == model and run.expected == "found" for name in run.mutations}
    covered = {name for run in runs.QUICK if run.model == model and run.expected == "covered" for name in run.mutations}
    assert names(source(model)) == found | covered
    assert covered - found <= {"M_RETFIRST"}


@pytest.mark.parametrize("model", MODELS)
def test_every_option_of_a_run_is_one_of_its_model(model: str) -> None:
    flags = {flag.partition("=")[0] for run in (*runs.QUICK, *runs.LONG) if run.model == model for flag in run.flags}
    for flag in flags:
        assert re.search(rf"(ifn?def|defined\() ?{flag}\b", source(model)), flag


def test_the_design_is_sound_with_every_option() -> None:
    for chosen in (runs.QUICK, runs.LONG):
        sound = {flag for run in chosen if run.expected == "sound" for flag in run.flags}
        assert sound >= {"ADOPT", "NEWREG", "FAIL", "REOFFER", "RING", "CTX", "CLOCK"}
        assert not names(" ".join(sound))


def test_the_readme_lists_the_mutations() -> None:
    listed = [row[0] for row in section("Mutations")]
    assert names(" ".join(listed)) == names("".join(map(source, MODELS)))
    covered = {tuple(run.mutations) for run in runs.QUICK if run.expected == "covered"}
    assert covered <= {tuple(row.split()) for row in listed}


def test_every_broken_rule_is_shown_by_a_mutation_or_a_test() -> None:
    found = {name for run in runs.QUICK if run.expected == "found" for name in run.mutations}
    rules = section("Rules")
    assert len(rules) >= 10
    for rule, shown in rules:
        tests = re.findall(r"`(tests/\w+\.py)::(\w+)`", shown)
        assert tests or names(shown), rule
        assert names(shown) <= found
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), rule


def test_the_functions_that_steps_stand_for_exist() -> None:
    rows = section("What a step stands for")
    assert len(rows) > 15
    for _, code in rows:
        for file, listed in re.findall(r"`([\w/]+\.(?:c|py))`: ((?:`\w+`(?:, )?)+)", code):
            path = ROOT / file if file.endswith(".py") else ROOT / "native" / file
            text = path.read_text(encoding="utf-8")
            for function in re.findall(r"`(\w+)`", listed):
                assert re.search(rf"(?:def |^[\w *]*\W){function}\(", text, re.MULTILINE), f"{file}: {function}"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["OPEN", "OK", "EXPIRED"])
def test_verdicts_are_the_headers(model: str, name: str) -> None:
    value = re.search(rf"^#define {name} (\d+)", source(model), re.MULTILINE)
    assert value is not None
    assert int(value[1]) == getattr(lib, f"HF_{name}")


def test_the_readme_has_the_large_runs() -> None:
    assert [row[0] for row in section("The large runs")] == [run.name for run in runs.LONG]


WHOLE: Final = """State-vector 188 byte, depth reached 589, errors: 0
   936068 states, stored
  182.7	total actual memory usage
"""
RUNS: Final = {run.expected: run for run in runs.QUICK}


@pytest.mark.parametrize(
    ("expected", "output", "status", "verdict"),
    [
        ("sound", WHOLE, 0, "ok"),
        ("covered", WHOLE, 0, "ok"),
        ("found", WHOLE, 0, "NOT FOUND"),
        ("found", "pan:1: invalid end state (at depth 3)\nWarning: Search not completed\n" + WHOLE, 0, "ok"),
        ("sound", "pan:1: assertion violated (x) (at depth 3)\n" + WHOLE, 0, "VIOLATION"),
        ("covered", "pan:1: assertion violated (x) (at depth 3)\n" + WHOLE, 0, "VIOLATION"),
        ("sound", "Warning: Search not completed\n" + WHOLE, 0, "NOT COMPLETE"),
        ("sound", "error: max search depth too small\n" + WHOLE, 0, "NOT COMPLETE"),
        ("sound", "pan: reached -DMEMLIM bound\npan: out of memory\n" + WHOLE, 0, "NOT COMPLETE"),
        ("found", "error: max search depth too small\n" + WHOLE, 0, "NOT COMPLETE"),
        ("sound", WHOLE.replace("errors: 0", "errors: 1"), 0, "NOT COMPLETE"),
        ("sound", "", 0, "NO RESULT"),
        ("found", "pan.c: error: expected ';'", 1, "NO RESULT"),
        ("found", "not through within 300 s", 124, "NO RESULT"),
    ],
)
def test_what_a_search_showed(expected: str, output: str, status: int, verdict: str) -> None:
    outcome = checker.parse(RUNS[expected], output, status, 1.0)
    assert outcome.verdict.startswith(verdict)
    assert checker.table([outcome]).count("\n") == 2


def test_without_spin_ci_fails_and_a_user_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checker.shutil, "which", lambda _name: None)
    monkeypatch.delenv("CI", raising=False)
    assert checker.main([]) == 0
    monkeypatch.setenv("CI", "true")
    assert checker.main([]) == 1
    assert "apt-get install spin" in capsys.readouterr().out
