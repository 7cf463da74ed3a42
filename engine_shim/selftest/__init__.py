# SPDX-License-Identifier: Apache-2.0
"""Before a round is parked on a GPU's stream: proof that this device, driver and daemon do what the hand-off rests on."""

from __future__ import annotations

from engine_shim.kept import release_kept
from engine_shim.selftest.report import Latency, Report, Step
from engine_shim.selftest.run import SelfTest


__all__ = ["Latency", "Report", "SelfTest", "Step", "release_kept"]
