# SPDX-License-Identifier: Apache-2.0
"""What the daemon shows: metrics, health, how it stands."""
