# SPDX-License-Identifier: Apache-2.0
"""docs/OPERATIONS.md explains every word that an engine may say."""

from __future__ import annotations

import re

from pathlib import Path

import pytest

from hostflag.verdicts import Loss, Skip


@pytest.mark.parametrize("words", [Loss, Skip], ids=lambda words: words.__name__)
def test_every_loss_and_every_skip_is_explained(root: Path, words: type[Loss | Skip]) -> None:
    text = (root / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    table = re.search(rf"^\| {words.__name__} \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table
    assert set(re.findall(r"^\| ([A-Z_]+) \|", table[0], re.MULTILINE)) == {word.name for word in words} - {"NONE"}
