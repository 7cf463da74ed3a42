# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that need hardware; what needs none is ``dsv41-rehearse bench``."""
