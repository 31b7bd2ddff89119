"""What `print` shows of runs, comparisons and studies: the tables of the command line."""

from __future__ import annotations

from rich.console import Console

from deep5.core.screen import write
from deep5.results.comparison import ComparisonResult
from deep5.results.comparison_table import comparison_tables
from deep5.results.result import Result
from deep5.results.study.record import Study
from deep5.results.table import verdict_table

__all__ = ["write_comparison", "write_result", "write_study"]


@write.register
def write_result(result: Result, console: Console) -> None:
    """A run: its metrics and its verdict."""
    verdict_table(result, console)


@write.register
def write_comparison(result: ComparisonResult, console: Console) -> None:
    """A comparison: its verdicts and its proof."""
    comparison_tables(result, console)


@write.register
def write_study(study: Study, console: Console) -> None:
    """A study: its means over the seeds."""
    study.print(console)
