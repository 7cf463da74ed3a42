# SPDX-License-Identifier: Apache-2.0
"""The region of a new session: made here, or handed over by an engine that lost its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostflag import region as regions
from hostflag.region import RegionFault, Word
from proxyd.errors import RefusedError


if TYPE_CHECKING:
    from hostflag.messages import Geometry


def created(geometry: Geometry) -> int:
    """Return the fd of a new region. Raises RefusedError where memory is short."""
    try:
        return regions.create(geometry)
    except RegionFault as fault:
        raise RefusedError("memory", str(fault)) from fault


def adoptable(fd: int, geometry: Geometry, base: int) -> None:
    """
    Check a region that an engine hands over: whole, of the geometry that HELLO names, and at rest at ``base``.

    Raises RefusedError with the first thing that is wrong.
    """
    try:
        header = regions.check(fd)
        if header.geometry != geometry:
            raise RefusedError("attach", "the region has another geometry than HELLO: ask for a new one (CREATE)")
        with regions.View(fd) as view:
            words = {word: view.word(word) for word in (Word.SUBMITTED, Word.GATHERED, Word.CONSUMED)}
            lost = view.word(Word.LOST)
    except RegionFault as fault:
        raise RefusedError("attach", f"the region cannot be adopted: {fault}") from fault
    if lost:
        raise RefusedError("attach", "the region's lost word is set: clear it before it is handed over")
    if set(words.values()) != {base}:
        found = ", ".join(f"{word.name.lower()} {value}" for word, value in words.items())
        raise RefusedError("attach", f"the region is not at rest at {base}: {found}")
