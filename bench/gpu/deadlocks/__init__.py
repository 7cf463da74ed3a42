# SPDX-License-Identifier: Apache-2.0
"""Who may release a parked stream: helpers that hang, and the product that does not. docs/DEADLOCKS.md."""
