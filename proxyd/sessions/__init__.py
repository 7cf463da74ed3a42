# SPDX-License-Identifier: Apache-2.0
"""Engine sessions: from accept and handshake to the round loop and its end."""
