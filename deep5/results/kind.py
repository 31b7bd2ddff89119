"""Determines the kind of result in a folder from the single document in it."""

from __future__ import annotations

import os
from pathlib import Path

from deep5.core.errors import UsageError

__all__ = [
    "COMPARISON",
    "COMPARISON_KIND",
    "FILES",
    "NETWORK",
    "NETWORK_KIND",
    "PROFILE",
    "PROFILE_KIND",
    "RESULT",
    "RUN_KIND",
    "STUDY",
    "STUDY_KIND",
    "SWEEP",
    "SWEEP_KIND",
    "kind_of",
]

RUN_KIND, COMPARISON_KIND, STUDY_KIND, SWEEP_KIND = "run", "comparison", "study", "sweep"
PROFILE_KIND, NETWORK_KIND = "profile", "network"

RESULT = "result.json"
"""The file of a folder that `deep5 run` or `deep5 bench` wrote."""

COMPARISON = "comparison.json"
"""The file of a folder that `deep5 compare` wrote."""

STUDY = "study.json"
"""The file of a folder that `deep5 study` wrote."""

SWEEP = "sweep.json"
"""The file of a folder that `deep5 sweep` wrote."""

PROFILE = "profile.json"
"""The file of a folder that `deep5 profile` wrote."""

NETWORK = "network.json"
"""The file of a folder that `deep5 show network` wrote."""

FILES = {
    RUN_KIND: RESULT,
    COMPARISON_KIND: COMPARISON,
    STUDY_KIND: STUDY,
    SWEEP_KIND: SWEEP,
    PROFILE_KIND: PROFILE,
    NETWORK_KIND: NETWORK,
}
"""The document that identifies each kind."""


def kind_of(folder: str | Path) -> str | None:
    """A key of `FILES`, or None if the folder contains no result; the document itself is not read.

    Entries that are not plain files also count, such as a dangling link: reading them reports the problem.

    Args:
        folder: Path of the folder.

    Raises:
        UsageError: It contains several of the documents, so its kind is ambiguous.
    """
    there = [kind for kind, name in FILES.items() if os.path.lexists(f"{folder}/{name}")]
    if len(there) > 1:
        names = " and ".join(FILES[kind] for kind in there)
        raise UsageError(
            f"{str(folder)!r:.200} holds {names}; allowed: one of them, as deep5 writes it; remedy: move each into a "
            "separate folder"
        )
    return there[0] if there else None
