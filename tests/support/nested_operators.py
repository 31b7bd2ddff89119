"""The operators whose gradients `test_gradient_nested.py` checks."""

from __future__ import annotations

NESTED = ("If", "LinearAttention", "Loop", "Scan")
