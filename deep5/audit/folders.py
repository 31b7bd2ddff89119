"""`audit`: audits result folders, each by its kind, and runs of one recipe together."""

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
from deep5.audit.sweeps import audit_sweep
from deep5.core.errors import UsageError
from deep5.core.files import is_folder
from deep5.core.progress import Steps, Tell, unreported
from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND, STUDY_KIND, SWEEP_KIND, kind_of
from deep5.results.store import survey

__all__ = ["Report", "audit"]

_NAMES = ", ".join(FILES[kind] for kind in (COMPARISON_KIND, STUDY_KIND, SWEEP_KIND, RUN_KIND))


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of an audit; true if there are no findings.

    Attributes:
        findings: In the order of the folders.
        folders: Number of audited runs, comparisons and studies.
        checks: Number of checks made.
        skipped: Checks that could not be made, with the reason, and how often.
    """

    findings: tuple[Finding, ...]
    folders: int
    checks: int
    skipped: dict[str, int]

    def __bool__(self) -> bool:
        return not self.findings

    def document(self) -> dict[str, Any]:
        """The report in JSON types."""
        return {
            "passed": bool(self),
            "findings": [{"rule": f.rule, "folder": f.folder, "what": f.what} for f in self.findings],
            "folders": self.folders,
            "checks": self.checks,
            "not_rechecked": self.skipped,
        }


def audit(folders: Iterable[str | Path], *, tell: Tell = unreported) -> Report:
    """Check results against the rules of measurement, offline; nothing in them is executed.

    Args:
        folders: Folders of runs, comparisons or studies; or folders that contain such folders.
        tell: Called with a `ProgressLine` before each folder.

    Raises:
        UsageError: A folder does not exist, or contains no results.
    """
    given = [found for folder in folders for found in _found(Path(folder))]
    if not given:
        raise UsageError("no folder to audit; allowed: folders that deep5 run, compare, study or sweep wrote")
    ledgers: list[Ledger] = []
    last = Ledger("the runs together")
    together = Together(last)
    import numpy as np

    # Absurd numbers become findings, not arithmetic warnings.
    with np.errstate(all="ignore"):
        paths = list(dict.fromkeys(given))
        steps = Steps(len(paths), tell)
        for path in paths:
            steps.say(f"audit: {path.name}")
            ledger = Ledger(str(path))
            ledgers.append(ledger)
            _audit(path, ledger, ledgers, together)
            steps.advance()
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
    # The kind determines all further checks.
    with ledger.part(14, "the kind of the result"):
        kind = kind_of(root)
        if kind == COMPARISON_KIND:
            audit_comparison(root, ledger)
        elif kind == STUDY_KIND:
            audit_study(root, ledger, ledgers)
        elif kind == SWEEP_KIND:
            audit_sweep(root, ledger, ledgers)
        elif kind == RUN_KIND:
            result = audit_run(root, ledger)
            if result is not None:
                together.add(str(path), result)
        else:
            ledger.skip(f"a {kind}: the rules do not apply to it")


def _is_result(folder: Path) -> bool:
    """Whether there is a result to audit; an ambiguous folder counts, because the audit reports it."""
    try:
        return kind_of(folder) is not None
    except UsageError:
        return True


def _found(folder: Path) -> list[Path]:
    """The folder itself, or the result folders below it; the runs of a study are audited with it."""
    if not is_folder(folder):
        raise UsageError(
            f"{folder} is not an existing folder; allowed: a folder that deep5 run, compare, study or sweep wrote"
        )
    if _is_result(folder):
        return [folder]
    seen = survey(folder)
    if seen.notes:  # a partial audit would be taken for a complete one
        raise UsageError(f"{seen.notes[0]}; remedy: name its folders")
    found = [folder / own.folder for own in seen.found if not own.study]
    if not found:
        raise UsageError(
            f"{folder} holds no result: neither {_NAMES} nor folders with one; allowed: a folder that deep5 run, "
            "compare, study or sweep wrote"
        )
    return found
