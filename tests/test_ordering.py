# SPDX-License-Identifier: Apache-2.0
"""docs/ORDERING.md and the comments in native/ name the same pairs: an order that nobody argued, or no code has, is an error."""

from __future__ import annotations

import collections
import re

from pathlib import Path
from typing import Final


ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = re.compile(r'"([a-z]+(?: [a-z]+)*, [a-z]+(?: [a-z]+)*)"')
ORDERED: Final = re.compile(r"memory_order_(?:acquire|release|acq_rel|seq_cst)")


def named_in_code() -> dict[str, list[str]]:
    """Return the places of each pair that a comment names."""
    places = collections.defaultdict(list)
    for path in sorted((ROOT / "native").glob("[!_]*.[ch]")):
        for comment in re.findall(r"/\*.*?\*/", path.read_text(encoding="utf-8"), re.DOTALL):
            for name in NAME.findall(re.sub(r"\s*\n\s*\*?\s*", " ", comment)):
                places[name].append(path.name)
    return places


def named_in_the_document() -> list[str]:
    text = (ROOT / "docs" / "ORDERING.md").read_text(encoding="utf-8")
    return re.findall(r'^### "([^"]+)"', text, re.MULTILINE)


def test_the_document_argues_the_pairs_of_the_code_and_no_others() -> None:
    document = named_in_the_document()
    assert sorted(document) == sorted(named_in_code()), "left: docs/ORDERING.md, right: comments in native/"


def test_a_pair_has_two_sides() -> None:
    alone = {name: places for name, places in named_in_code().items() if len(places) < 2}
    assert alone == {}


def test_a_file_that_orders_memory_names_a_pair() -> None:
    for path in sorted((ROOT / "native").glob("[!_]*.c")):
        text = path.read_text(encoding="utf-8")
        if ORDERED.search(text):
            assert NAME.search(text) or "airs with" in text, (
                f"{path.name} orders memory, and no comment says against what"
            )
