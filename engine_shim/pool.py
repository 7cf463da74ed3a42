# SPDX-License-Identifier: Apache-2.0
"""
The regions of a shim. They stay registered with the stream for the engine's life, so they are used again, and few.

A region is another session's only once its last owner is provably gone, which is POLLHUP on that owner's socket and nothing
else, and once the stream is past all its rounds.
"""

from __future__ import annotations

import select

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine_shim.region import Region
from engine_shim.session import Session
from engine_shim.shimstatus import RegionCounts
from hostflag.channel import Channel
from hostflag.messages import FromDaemon


# Poisoned regions that another one is made for. Each is memory for the engine's life, and a stream takes 32 regions, or 64.
REPLACED: Final = 16


@dataclass(eq=False, slots=True)
class Place:
    """
    A region and who had it last. ``owner``: the socket of the daemon that got it, None once that is gone.

    ``session``: the last one on it, until it is ended. ``shunned``: a daemon that lives refused to adopt it.
    """

    region: Region
    owner: Channel[FromDaemon] | None
    session: Session | None = None
    shunned: bool = False

    @property
    def fenced(self) -> bool:
        """Whether its last owner may still be there. Its socket stays open as long, so that it can be asked."""
        return self.owner is not None

    @property
    def free(self) -> bool:
        return self.owner is None and self.session is None and self.region.base() is not None

    @property
    def settling(self) -> bool:
        """Whether it only waits for the stream."""
        return self.owner is None and not self.free and not self.region.poisoned

    @property
    def spent(self) -> bool:
        """
        Whether it is poisoned, and nobody is at it any more: neither a daemon nor the stream.

        It stays all the same. To unregister it the driver would hold up every launch of the engine, as long as a round is parked.
        """
        return self.owner is None and self.session is None and self.region.poisoned


class Pool:
    """Changed by the keeper alone, and by ``close`` after it. ``limit``: how many regions there may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: list[Place] = []
        self.in_use: Place | None = None

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places))

    @property
    def room(self) -> bool:
        """Whether there may be one more. A few that are spent do not count: else a few failed submits were the engine's last."""
        spent = sum(place.spent for place in self)
        return len(self._places) - min(spent, REPLACED) < self._limit

    @property
    def shortage(self) -> str:
        """Why there is neither a free one nor room, and what there is to do."""
        places = list(self)
        spent = sum(place.spent for place in places)
        fenced = sum(place.fenced for place in places)
        late = len(places) - spent - fenced
        why = [f"all {self._limit} regions are taken"]
        if fenced:
            why.append(f"{fenced} by daemons that are not gone: end the stopped dsv41-proxyd processes")
        if late:
            why.append(f"{late} by rounds that the stream is not past: it is stuck, or very late")
        if spent > REPLACED:
            why.append(
                f"{spent} are poisoned, of which {REPLACED} were replaced: stream operations failed, or daemons wrote garbage. "
                "Their memory is kept for the engine's life: find out why, and start the engine anew"
            )
        return "; ".join(why)

    def add(self, region: Region, owner: Channel[FromDaemon]) -> Place:
        """Take a region over that a daemon made."""
        place = Place(region, owner)
        self._places.append(place)
        return place

    def free(self) -> Place | None:
        """Return a region that can be offered; one that was refused only where there is room for no other."""
        free = [place for place in self if place.free]
        return next((place for place in free if not place.shunned), None if self.room or not free else free[0])

    @property
    def settling(self) -> bool:
        """Whether a region only waits for the stream."""
        return any(place.settling for place in self)

    @property
    def unreaped(self) -> bool:
        """Whether a lost session is not ended yet: somebody has to look whether the stream is past it."""
        return any(place.session is not None for place in self if place is not self.in_use)

    def fences(self) -> list[int]:
        """Return the sockets to watch for POLLHUP."""
        return [place.owner.fileno() for place in self if place.owner is not None and place is not self.in_use]

    def look(self) -> None:
        """Find out which owners are gone and which lost sessions the stream is past. Never waits."""
        for place in self:
            if place is self.in_use:
                continue
            if place.session is not None and place.session.reap():
                place.session = None
            if place.owner is not None and hung_up(place.owner):
                place.owner.close()
                place.owner = None

    def counts(self) -> RegionCounts:
        """Return how many there are of each kind."""
        places = [place for place in self if place is not self.in_use]
        usable = [place for place in places if not place.region.poisoned]
        return RegionCounts(
            in_use=int(self.in_use is not None),
            free=sum(place.free for place in usable),
            fenced=sum(place.fenced for place in usable),
            settling=sum(place.settling for place in usable),
            poisoned=len(places) - len(usable),
            limit=self._limit,
        )

    @property
    def leaving(self) -> Channel[FromDaemon] | None:
        """The socket of the session in use; after ``give_away`` it is the caller's to end."""
        return None if self.in_use is None else self.in_use.owner

    def give_away(self) -> None:
        """Leave ``leaving`` to the caller."""
        if self.in_use is not None:
            self.in_use.owner = None

    def forked(self) -> None:
        """Drop what a forked child has: descriptors. Maps and threads it has none."""
        for place in self:
            if place.session is not None:
                place.session.forked()
            if place.owner is not None:
                place.owner.close()
            place.region.forked()
        self._places.clear()
        self.in_use = None

    def close(self) -> None:
        """Unmap all, close the fences; every session is ended. Where it was interrupted, it can be called again."""
        self.in_use = None
        while self._places:
            place = self._places[-1]
            place.session = None  # it must not be asked about a region that is gone
            place.region.close()
            if place.owner is not None:
                place.owner.close()
            self._places.pop()


def hung_up(channel: Channel[FromDaemon]) -> bool:
    """Whether the other end is gone: POLLHUP. Not a read of 0 bytes, which an empty packet is too, nor a failed write."""
    poller = select.poll()
    poller.register(channel.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
