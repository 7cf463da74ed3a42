# SPDX-License-Identifier: Apache-2.0
"""The reference worker: docs/CONTRACT.md by example, with two drafters that need no model."""
