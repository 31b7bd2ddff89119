"""Rule 8: the raw files of a folder are those that its document identifies by SHA-256."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import Any

from deep5.audit.files import plain, sha256_of
from deep5.audit.finding import Ledger
from deep5.core.quantities import size
from deep5.results.reading import TABLE_BYTES
from deep5.results.samples_file import SAMPLES

__all__ = ["check_raw_files"]


def check_raw_files(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """Compare the raw files with the hashes that the end of the run, or of the comparison, stored.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json or comparison.json.
    """
    stored = document.get("files")
    if stored is None:
        ended = document["status"] == "success"
        why = "an older deep5 made it" if ended else "it did not end"
        ledger.skip(f"the bytes of raw files: no hashes of them are stored, because {why}")
        return
    with ledger.part(8, SAMPLES):
        listed = SAMPLES in stored or document["status"] != "success" or plain(root, SAMPLES) is None
        ledger.hold(8, listed, f"no hash of {SAMPLES} is stored, and those of other files are; allowed: one of each")
    for name, expected in stored.items():
        with ledger.part(8, name):
            _check(ledger, root, name, expected)


def _check(ledger: Ledger, root: Path, name: str, expected: str) -> None:
    path = root / name
    if lexists(path) and path.lstat().st_size > TABLE_BYTES:
        ledger.skip(f"{name[:100]}: it is larger than {size(TABLE_BYTES)}")
        return
    found = sha256_of(root, name, most_bytes=TABLE_BYTES)
    if not ledger.hold(8, found is not None, f"{name} is missing; the run ended with it") or found is None:
        return
    ledger.hold(
        8,
        found == expected,
        f"{name} was changed after the run: its SHA-256 was {expected[:12]}… when the run ended, and is {found[:12]}…",
    )
