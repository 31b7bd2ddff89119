"""`admitted`: the runs in folders that an audit has no findings about."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from deep5.audit.folders import audit
from deep5.core.progress import Tell, unreported
from deep5.core.terminal import counted
from deep5.results.report.collect import collect
from deep5.results.result import Result

__all__ = ["admitted"]


def admitted(folders: Iterable[str | Path], *, tell: Tell = unreported) -> tuple[list[Result], dict[str, str]]:
    """Runs without findings, and folders that do not count.

    A study counts as a whole: a run that was dropped from it is a finding about the study.

    Args:
        folders: Folders of runs and studies, or folders that contain such.
        tell: Called with a `ProgressLine` before each folder.

    Returns:
        The runs; and by folder, why it does not count.

    Raises:
        UsageError: A folder does not exist, or contains no results.
    """
    found = collect(folders)
    out = {own.path: own.reason for own in found.unreadable}
    runs: list[Result] = []
    wholes = [(study.folder, [run for own in study.runs.values() for run in own]) for study in found.studies]
    wholes += [(run.folder, [run]) for run in found.runs]
    for folder, own in wholes:
        report = audit([folder], tell=tell)
        if report:
            runs += own
        else:
            first = report.findings[0]
            out[str(folder)] = f"{counted(len(report.findings), 'finding')} of the audit; the first: {first.what}"
    return runs, out
