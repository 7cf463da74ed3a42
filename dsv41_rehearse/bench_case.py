# SPDX-License-Identifier: Apache-2.0
"""What every measurement of the bench has in common: sizes, geometry, the bytes that travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsv41_rehearse.device import U8
from hostflag.messages import Geometry


ROW_BYTES: Final = 8192
SIZES: Final = {"64KiB": 8, "512KiB": 64}  # rows of one request in a round
MODEL: Final = "bench"


@dataclass(frozen=True)
class Case:
    """``gpu_ms``: simulated GPU work before each gather. ``source``: as many bytes as the largest round has."""

    seed: int
    gpu_ms: float = 1.0
    geometry: Geometry = field(
        default_factory=lambda: Geometry(row_bytes=ROW_BYTES, drafts=5, vocab=129_280, window=max(SIZES.values()))
    )
    source: U8 = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        source = random.integers(0, 256, max(SIZES.values()) * ROW_BYTES, dtype=np.uint8)
        object.__setattr__(self, "source", source)
