"""Raw files of a result folder, which the SHA-256 in its document identify from the end of the run on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePath

__all__ = ["is_raw", "raw_hashes"]

# The network has hashes of its structure and weights. Pictures are drawn from other files, and may be drawn again.
_HASHED, _DRAWN = frozenset({"network.onnx"}), frozenset({".svg", ".png"})


def is_raw(name: str) -> bool:
    """Whether a file of a run is identified by its bytes: neither a picture nor the network.

    >>> [name for name in ("samples.csv", "operators.json", "operators.svg", "network.onnx") if is_raw(name)]
    ['samples.csv', 'operators.json']
    """
    return name not in _HASHED and PurePath(name).suffix not in _DRAWN


def raw_hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files as they are on the disk, by name.

    Args:
        folder: The result folder.
        names: Names of plain files in it.

    Raises:
        OSError: One of them cannot be read.
    """
    found = {}
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
