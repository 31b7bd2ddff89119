"""deep5's version, defined only here, and the folder of its package."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PACKAGE", "__version__"]

__version__ = "0.2.0"

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the imported package `deep5`."""
