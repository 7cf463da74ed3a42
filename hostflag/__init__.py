# SPDX-License-Identifier: Apache-2.0
"""What engine and daemon agree on: geometry, regions, verdicts, handshake messages, the network protocol."""
