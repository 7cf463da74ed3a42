# SPDX-License-Identifier: Apache-2.0
"""What engine and daemon agree on: geometry, regions, verdicts, handshake messages, the network protocol."""

from __future__ import annotations

from typing import Final


__version__: Final = "0.1.0"
