# SPDX-License-Identifier: Apache-2.0
"""A round loop's settings: the daemon's, and what an engine wishes within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxyd.sessions.roundloop import LoopConfig


if TYPE_CHECKING:
    from hostflag.messages import Hello
    from proxyd.config.settings import Settings


# A hint costs this machine's CPU, or the engine's time: neither without end. Times in us.
MOST_SPIN_US: Final = 1000.0
LEAST_NAP_US: Final = 5.0
MOST_NAP_US: Final = 1000.0


def loop_config(settings: Settings, hello: Hello, *, number: int, base: int) -> LoopConfig:
    """Return what session ``number``, whose counter stands at ``base``, is to run with."""
    spin_us, nap_us = settings.spin_us, settings.nap_us
    if hello.spin_us is not None:
        spin_us = min(hello.spin_us, MOST_SPIN_US)
    if hello.nap_us is not None:
        nap_us = min(max(hello.nap_us, LEAST_NAP_US), MOST_NAP_US)
    return LoopConfig(
        session=number,
        base=base,
        network_timeout_ns=round(settings.network_timeout_ms * 1e6),
        spin_ns=round(spin_us * 1e3),
        nap_ns=round(nap_us * 1e3),
        breaker_failures=settings.breaker_failures,
        breaker_cool_ns=round(settings.breaker_cool_ms * 1e6),
    )
