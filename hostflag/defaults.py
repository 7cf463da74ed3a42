# SPDX-License-Identifier: Apache-2.0
"""Addresses that two programs must agree on where nobody says otherwise."""

from __future__ import annotations

from typing import Final


ENGINE_SOCKET: Final = "/run/dsv41-proxyd/engine.sock"
WORKER_ENDPOINT: Final = "tcp://127.0.0.1:5741"
