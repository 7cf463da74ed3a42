# SPDX-License-Identifier: Apache-2.0
"""When the loop looks for gathered: native/nap.c against simulated rounds. Time is simulated too, so nothing here is noisy."""

from __future__ import annotations

import ctypes
import random
import statistics
import subprocess

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest


NATIVE: Final = Path(__file__).parents[1] / "native"
SPIN_NS: Final = 50_000
NAP_NS: Final = 20_000
WAKE_NS: Final = 28_000  # how much longer a nap lasts than asked for (facts.md)
NAP_COSTS_NS: Final = 22_000
ROUNDS: Final = 300


class Naps:
    """A loop that looks for gathered as round.c does, in simulated time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._nap = ctypes.create_string_buffer(4096)
        library.hf_nap_next.restype = ctypes.c_uint64
        library.hf_nap_init(self._nap, ctypes.c_uint64(SPIN_NS), ctypes.c_uint64(NAP_NS))

    def late_ns(self, gathered_ns: int) -> int:
        """Do a round that is gathered so long after it was submitted; return how much later that was seen."""
        self.cost_ns = 0
        now = 0
        while now < gathered_ns:
            nap_ns = self._library.hf_nap_next(self._nap, ctypes.c_uint64(now))
            now += nap_ns + WAKE_NS if nap_ns else 100
            self.cost_ns += NAP_COSTS_NS if nap_ns else 100
        self._library.hf_nap_learn(self._nap, ctypes.c_uint64(gathered_ns))
        return now - gathered_ns

    def all_late_us(self, rounds: Iterable[float]) -> list[float]:
        """Do rounds; return how late each was seen, us."""
        return [self.late_ns(int(gathered_ns)) / 1e3 for gathered_ns in rounds]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("nap") / "nap.so"
    command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, str(NATIVE / "nap.c"), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def naps(library: ctypes.CDLL) -> Naps:
    return Naps(library)


def regular(rounds: int = ROUNDS, gathered_ns: float = 30e6) -> list[float]:
    """Return rounds at an engine's pace: 20 us of noise."""
    noise = random.Random(1)
    return [gathered_ns + noise.gauss(0, 20e3) for _ in range(rounds)]


def test_regular_rounds_are_seen_at_once_for_little_cpu(naps: Naps) -> None:
    late = naps.all_late_us(regular())
    assert statistics.median(late) < 1
    assert sorted(late[10:])[-3] < 250
    # At 25 rounds a second less than 3 % of a core.
    assert naps.cost_ns * 25 < 0.03e9


def test_another_pace_is_learned_within_a_window(naps: Naps) -> None:
    naps.all_late_us([20e3] * 20)
    assert max(naps.all_late_us(regular(20))[7:]) < 250


def test_an_odd_round_moves_nothing(naps: Naps) -> None:
    naps.all_late_us(regular(20))
    naps.late_ns(int(300e6))
    assert max(naps.all_late_us(regular(6))) < 250


def test_a_round_that_comes_early_is_not_slept_through(naps: Naps) -> None:
    naps.all_late_us(regular(ROUNDS, 300e6))
    assert naps.late_ns(int(30e6)) < 5e6


def test_a_round_that_comes_late_costs_no_more_than_its_share(naps: Naps) -> None:
    naps.all_late_us(regular(20))
    assert naps.late_ns(int(90e6)) < 90e6 / 16
    assert naps.cost_ns < 10e6


def test_two_paces_are_both_looked_for(naps: Naps) -> None:
    pick = random.Random(2)
    late = naps.all_late_us(pick.choice((20e6, 30e6)) for _ in range(ROUNDS))
    assert statistics.median(late) < 500
    assert max(late[7:]) < 5_000


def test_nothing_known_yet(naps: Naps) -> None:
    assert naps.late_ns(int(30e6)) < 30e6 / 16
