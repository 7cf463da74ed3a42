# SPDX-License-Identifier: Apache-2.0
"""Operators: the daemon's end of their connections, and dsv41-proxyctl."""
