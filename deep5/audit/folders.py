"""`audit`: folders of results, each by its kind, and together where they are runs of one recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.audit.comparisons import audit_comparison
from deep5.audit.finding import Finding, Ledger
from deep5.audit.runs import audit_run
from deep5.audit.sets import Together
from deep5.audit.studies import audit_study
from deep5.core.errors import UsageError
from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND, STUDY_KIND, kind_of
from deep5.results.store import survey

__all__ = ["Report", "audit"]

_NAMES = ", ".join(FILES[kind] for kind in (COMPARISON_KIND, STUDY_KIND, RUN_KIND))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an audit found; true where it found nothing.

    Attributes:
        findings: In the order of the folders.
        folders: How many were audited: runs, comparisons and studies.
        checks: How many checks were made.
        skipped: What could not be checked again, with the reason, and how often.
    """

    findings: tuple[Finding, ...]
    folders: int
    checks: int
    skipped: dict[str, int]

    def __bool__(self) -> bool:
        return not self.findings

    def document(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "passed": bool(self),
            "findings": [{"rule": f.rule, "folder": f.folder, "what": f.what} for f in self.findings],
            "folders": self.folders,
            "checks": self.checks,
            "not_rechecked": self.skipped,
        }


def audit(folders: Iterable[str | Path]) -> Report:
    """Hold results against the rules of measurement, offline; nothing that is found in them is run.

    Args:
        folders: Of runs, comparisons or studies; or folders that hold such folders.

    Raises:
        UsageError: A folder is not there, or holds none of them.
    """
    given = [found for folder in folders for found in _found(Path(folder))]
    if not given:
        raise UsageError("no folder to audit; allowed: folders that deep5 run, compare or study wrote")
    ledgers: list[Ledger] = []
    last = Ledger("the runs together")
    together = Together(last)
    import numpy as np

    # Absurd numbers are findings, and no warnings of arithmetic.
    with np.errstate(all="ignore"):
        for path in dict.fromkeys(given):
            ledger = Ledger(str(path))
            ledgers.append(ledger)
            _audit(path, ledger, ledgers, together)
    skipped: Counter[str] = Counter()
    for ledger in (*ledgers, last):
        skipped += ledger.skipped
    return Report(
        findings=tuple(finding for ledger in (*ledgers, last) for finding in ledger.findings),
        folders=len(ledgers),
        checks=sum(ledger.checks for ledger in (*ledgers, last)),
        skipped=dict(sorted(skipped.items())),
    )


def _audit(path: Path, ledger: Ledger, ledgers: list[Ledger], together: Together) -> None:
    root = path.resolve()
    # What a result is, is the first thing that it is keyed by.
    with ledger.part(14, "the kind of the result"):
        kind = kind_of(root)
        if kind == COMPARISON_KIND:
            audit_comparison(root, ledger)
        elif kind == STUDY_KIND:
            audit_study(root, ledger, ledgers)
        elif kind == RUN_KIND:
            result = audit_run(root, ledger)
            if result is not None:
                together.add(str(path), result)
        else:
            ledger.skip(f"a {kind}: it claims nothing that the rules are about")


def _is_result(folder: Path) -> bool:
    """Whether there is something to audit; of a folder that would be two things at once the audit says so."""
    try:
        return kind_of(folder) is not None
    except UsageError:
        return True


def _found(folder: Path) -> list[Path]:
    """The folder itself, or those below it; the runs of a study are audited with it."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder that is there; allowed: a folder that deep5 run, compare or study wrote"
        )
    if _is_result(folder):
        return [folder]
    seen = survey(folder)
    if seen.notes:  # an audit of a part would pass for one of the whole
        raise UsageError(f"{seen.notes[0]}; remedy: name its folders")
    found = [folder / own.folder for own in seen.found if not own.study]
    if not found:
        raise UsageError(
            f"{folder} holds no result: neither {_NAMES} nor folders with one; allowed: a folder that deep5 run, "
            "compare or study wrote"
        )
    return found
