# SPDX-License-Identifier: Apache-2.0
"""The yardstick: CUDA driver calls from C, with nothing of the product."""
