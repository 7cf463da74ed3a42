# SPDX-License-Identifier: Apache-2.0
"""Imported before anything else of ours: what keeps the daemon small."""

from __future__ import annotations

import importlib
import sys


if not {"rich", "structlog"} & sys.modules.keys():
    # structlog imports rich wherever it finds it: 3 MiB and 40 ms, for a daemon that draws nothing.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
