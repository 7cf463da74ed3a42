# SPDX-License-Identifier: Apache-2.0
"""Who may come in at the engine socket, beyond what the socket file's mode says; and who of them may be an operator."""

from __future__ import annotations

import os

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostflag.users import gid_of, uid_of
from proxyd.errors import RefusedError


if TYPE_CHECKING:
    from proxyd.config.settings import Settings
    from proxyd.sessions.peer import Peer


@dataclass(frozen=True, slots=True)
class Admission:
    """
    By user and group of whoever called ``connect``. Root and the daemon's own user may do everything.

    With neither ``users`` nor ``groups`` named, the mode of the socket decides alone who may be an engine.
    """

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    operators: frozenset[int] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Admission:
        """Raises ValueError where somebody who is named is not a user or group of this machine (any more)."""
        return cls(
            users=frozenset(map(uid_of, settings.allowed_users)),
            groups=frozenset(map(gid_of, settings.allowed_groups)),
            operators=frozenset(map(uid_of, settings.operator_users)),
        )

    def check_engine(self, peer: Peer) -> None:
        """Raise RefusedError where this peer may not be an engine."""
        if _is_ours(peer) or not (self.users or self.groups):
            return
        if peer.uid not in self.users and not self.groups.intersection(peer.groups):
            raise RefusedError(
                "permission",
                f"uid {peer.uid} with groups {_listed(peer.groups)} may not be an engine here: the daemon's administrator can add it "
                "to security.allowed_users, or one of its groups to security.allowed_groups",
            )

    def check_operator(self, peer: Peer) -> None:
        """Raise RefusedError where this peer may not look after the daemon."""
        if not _is_ours(peer) and peer.uid not in self.operators:
            raise RefusedError(
                "permission",
                f"only root, uid {os.geteuid()} (the daemon's own) and security.operator_users may do this, not uid {peer.uid}: "
                "use sudo",
            )


def _is_ours(peer: Peer) -> bool:
    return peer.uid in {0, os.geteuid()}


def _listed(groups: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(groups)[:16])) or "unknown"
