# SPDX-License-Identifier: Apache-2.0
"""The fuzzers' committed inputs, without a fuzzer: seeds and what was found once. And that a fuzzer finds a bug, and says so."""

from __future__ import annotations

import importlib
import os
import subprocess

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog

from fuzz import __main__ as runner
from fuzz import campaign, selftest
from fuzz.bugs import BUGS, Bug
from fuzz.build import CannotBuild, build_replay, fuzzing_clang
from fuzz.seeds import SEEDS
from fuzz.targets import BUILD, CORPUS, IN_C, IN_PYTHON, ROOT, SLOTS, TARGETS, Target, inputs


QUICK: Final = ("more requests than there may be", "a geometry that is not HELLO's")


@pytest.fixture
def own_log() -> Iterator[None]:
    """A fuzzer takes structlog for itself."""
    before, configured = structlog.get_config(), structlog.is_configured()
    yield
    structlog.reset_defaults()
    if configured:
        structlog.configure(**before)


@pytest.mark.parametrize("name", SEEDS)
def test_the_seeds_are_what_the_encoders_make_now(name: str) -> None:
    committed = {path.name: path.read_bytes() for path in (CORPUS / name).iterdir()}
    assert committed == dict(SEEDS[name]()), "run python -m fuzz.seeds, and commit"


@pytest.mark.parametrize("target", IN_PYTHON, ids=lambda target: target.name)
def test_python_takes_every_committed_input(target: Target, own_log: None) -> None:
    one_input = importlib.import_module(f"fuzz.{target.name}").one_input
    assert inputs(target)
    for path in inputs(target):
        one_input(path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(300)  # it compiles the product
@pytest.mark.parametrize("target", IN_C, ids=lambda target: target.name)
def test_c_takes_every_committed_input(target: Target) -> None:
    program = build_replay(target, BUILD)
    ended = subprocess.run([program, *inputs(target)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stderr.count("\n") == len(inputs(target))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_seeded(bug: Bug) -> None:
    """What is to be taken out is still there, once."""
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.before) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICK)
def test_a_seeded_bug_is_found(name: str) -> None:
    """The other ones: make fuzz-selftest."""
    bug = next(each for each in BUGS if each.name == name)
    if bug.target in IN_C:
        able("libFuzzer", fuzzing_clang)
    else:
        able("atheris", lambda: importlib.import_module("atheris"))
    assert selftest.found_after(bug, 60) is not None


def able(what: str, look: object) -> None:
    """Skip what this machine cannot do; in CI it must be able to."""
    try:
        assert callable(look)
        look()
    except (CannotBuild, ImportError) as fault:
        if "CI" in os.environ:
            raise
        pytest.skip(f"no {what} here: {fault}")


def fake_fuzzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Have every fuzzer be a shell script, which finds the prefix of its artifacts in $prefix."""
    program = tmp_path / "fuzzer"
    program.write_text(f"#!/bin/sh\nfor a; do case $a in -artifact_prefix=*) prefix=${{a#*=}};; esac; done\n{script}\n")
    program.chmod(0o755)
    for module in (campaign, runner):
        monkeypatch.setattr(module, "command_of", lambda _target: [str(program)])
    monkeypatch.setattr(runner, "_prepared", lambda _target: True)
    return program


DONE: Final = "echo '#1234\tDONE   cov: 56 ft: 78 corp: 9/10b lim: 11 exec/s: 617 rss: 30Mb' >&2"


def test_a_run_that_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_fuzzer(tmp_path, monkeypatch, DONE)
    assert runner.main(["--seconds=2", f"--found={tmp_path}/found"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [target.name for target in TARGETS]
    assert "clean: 1234 inputs, 617/s, 56 edges, corpus 9" in lines[0]


def test_what_was_found_is_kept_and_how_to_see_it_again_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = fake_fuzzer(tmp_path, monkeypatch, f"printf x > ${{prefix}}crash-1; echo why >&2; {DONE}; exit 77")
    assert runner.main(["--seconds=1", f"--found={tmp_path}/found", SLOTS.name]) == 1
    said = capsys.readouterr()
    crash = tmp_path / "found" / SLOTS.name / "crash-1"
    assert crash.read_bytes() == b"x"
    assert "FOUND SOMETHING" in said.out
    assert "why" in said.err
    assert f"{program} {crash}" in said.err


@pytest.mark.parametrize("script", ["exit 1", "exit 0", f"{DONE}; exit 1"], ids=["fails", "says nothing", "fails late"])
def test_a_fuzzer_that_does_not_run_is_no_clean_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_fuzzer(tmp_path, monkeypatch, script)
    assert runner.main(["--seconds=1", f"--found={tmp_path}/found", SLOTS.name]) == 1


def test_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["nonsense"]) == 2
    assert "there are incoming" in capsys.readouterr().err
