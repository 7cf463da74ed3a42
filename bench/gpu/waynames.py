# SPDX-License-Identifier: Apache-2.0
"""The ways in which an engine can have its drafts, by name. Apart from their code, which needs a GPU."""

from __future__ import annotations

from typing import Final


WAYS: Final = ("none", "sync", "thread", "ours")
WORDS: Final = {"none": "no drafts", "sync": "synchronous", "thread": "thread proxy", "ours": "ours"}
