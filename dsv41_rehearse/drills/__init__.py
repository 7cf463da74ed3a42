# SPDX-License-Identifier: Apache-2.0
"""The fault drills: each injects a fault into the real daemon, worker or engine, and holds what came of it against its bound."""
