# SPDX-License-Identifier: Apache-2.0
"""The version of the whole project, and the only place where it is written."""

from __future__ import annotations

from typing import Final


VERSION: Final = "0.1.0"
