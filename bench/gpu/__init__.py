# SPDX-License-Identifier: Apache-2.0
"""What a CUDA stream makes of it: ``python -m bench.gpu``, and ``python -m bench.gpu.deadlocks``."""
