# SPDX-License-Identifier: Apache-2.0
"""How a round ended, why a submit made none, why a session was lost: names for the C enums of native/hostflag.h."""

from __future__ import annotations

import enum

from hostflag._hostflag import lib


class Verdict(enum.IntEnum):
    """How a round ended; OPEN: it has not."""

    OPEN = lib.HF_OPEN
    OK = lib.HF_OK
    EXPIRED = lib.HF_EXPIRED
    LOST = lib.HF_LOST
    TIMEOUT = lib.HF_TIMEOUT
    BREAKER = lib.HF_BREAKER
    DISCONNECTED = lib.HF_DISCONNECTED
    SEND_ERROR = lib.HF_SEND_ERROR
    BAD_REPLY = lib.HF_BAD_REPLY
    REFUSED = lib.HF_REFUSED
    DRAINING = lib.HF_DRAINING


class Skip(enum.IntEnum):
    """Why a submit made no drafting round."""

    NONE = lib.HF_SKIP_NONE
    NO_SESSION = lib.HF_SKIP_NO_SESSION
    SLOTS = lib.HF_SKIP_SLOTS
    RING = lib.HF_SKIP_RING
    WATCHDOG = lib.HF_SKIP_WATCHDOG
    DRAINING = lib.HF_SKIP_DRAINING
    NOTHING = lib.HF_SKIP_NOTHING


class Loss(enum.IntEnum):
    """Why a session was lost."""

    NONE = lib.HF_LOSS_NONE
    HANGUP = lib.HF_LOSS_HANGUP
    BEAT = lib.HF_LOSS_BEAT
    EXPIRIES = lib.HF_LOSS_EXPIRIES
    SUBMIT = lib.HF_LOSS_SUBMIT
    CLOSED = lib.HF_LOSS_CLOSED
    DRAINED = lib.HF_LOSS_DRAINED
    GARBAGE = lib.HF_LOSS_GARBAGE


class Phase(enum.IntEnum):
    """What the daemon is doing with the session."""

    NONE = lib.HF_PHASE_NONE
    RUNNING = lib.HF_PHASE_RUNNING
    DRAINING = lib.HF_PHASE_DRAINING
    GONE = lib.HF_PHASE_GONE
