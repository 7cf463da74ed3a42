# SPDX-License-Identifier: Apache-2.0
"""What ``dsv41-proxyctl qualify`` and the program that it starts in the engine's Python agree on."""

from __future__ import annotations

import argparse

from typing import Final


MOST_ROUNDS: Final = 1_000_000


def rounds_of(text: str) -> int:
    """Return the argument of ``--rounds``. Raises ArgumentTypeError."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds from 1 to {MOST_ROUNDS}")
    return count
