# SPDX-License-Identifier: Apache-2.0
"""What a daemon answers in an echo session: drafts that follow from the rows it found (native/echo.h)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hostflag._hostflag import ffi, lib


def echo_drafts(rows: Iterable[tuple[int, int, Any]], anchor: int, drafts: int, vocab: int) -> list[int]:
    """
    Return the drafts of a request. ``rows``: (position, token, bytes of the row) of its valid rows, in order.

    ``anchor``: the token behind them: last_sampled where num_sampled is above 0, else next_prefill.
    """
    total = 0
    for position, token, row in rows:
        buffer = ffi.from_buffer(row)
        total = lib.hf_echo_row(total, position, token, buffer, len(buffer))
    return [int(lib.hf_echo_id(total, anchor, index, vocab)) for index in range(drafts)]
