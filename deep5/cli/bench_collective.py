"""The command `deep5 bench collective`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from deep5.cli.on_engine import engine_option
from deep5.core.errors import Errors, UsageError

if TYPE_CHECKING:
    from deep5.bench.collective.measure import CollectiveTimes
    from deep5.bench.collective.summary import CollectiveSummary
    from deep5.distributed.collectives.algorithms import AllReduceFunction

__all__ = ["collective_command"]

_RANKS, _ROUNDS, _QUICK_ROUNDS = 2, 20, 8


def collective_command(errors: Errors, algorithms: Mapping[str, AllReduceFunction] | None = None) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
        algorithms: By name, in place of the built-in ones; only threads can use others.
    """

    @click.command("collective")
    @_options
    @engine_option(errors, "bench", "collective", ranks=_RANKS)
    def collective(ranks: int | None, launcher: str, out: str, as_json: bool, debug: bool, **chosen: Any) -> None:
        """Time all-reduce, deep5's algorithms and the library's, over sizes, and compare them with a model.

        Within a job (mpiexec -n 4 deep5 bench collective) it uses the ranks of the job; otherwise it starts them. The
        exit status is 1 if a result is wrong.
        """
        wrong: tuple[str, ...] = ()
        rank = 0
        with errors(debug, as_json) as show:
            from deep5.bench.collective.ranks import check_launcher, measure_as_rank, start
            from deep5.bench.collective.record import check_writable
            from deep5.bench.collective.summary import summarise_collectives
            from deep5.distributed.collectives.algorithms import ALGORITHMS

            known = ALGORITHMS if algorithms is None else algorithms
            check_launcher(launcher)
            plan = _plan(known, **chosen)
            found = measure_as_rank(plan, ranks) if launcher != "threads" else None
            if found is None:
                count = _at_least_two(ranks)
                check_writable(out)
                times, by = start(plan, count, launcher, known), launcher
            else:
                times, rank, by = found
            summary = summarise_collectives(times)
            wrong = summary.wrong
            if rank == 0:
                _report(times, summary, by, out, show, as_json)
        if wrong:
            if rank == 0:
                more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                click.echo(f"deep5: a result is wrong: {wrong[0]}{more}", err=True)
            raise SystemExit(1)

    return collective


def _at_least_two(ranks: int | None) -> int:
    if ranks is not None and ranks < 2:
        raise UsageError(
            f"--ranks {ranks}: a collective needs several ranks; allowed: at least 2; remedy: --ranks {_RANKS}"
        )
    return ranks or _RANKS


def _report(
    times: CollectiveTimes, summary: CollectiveSummary, by: str, out: str, show: Callable[[str], None], as_json: bool
) -> None:
    from deep5.bench.collective.ranks import LAUNCHERS, crowded, disturbed
    from deep5.bench.collective.record import collective_document, write_collective

    # It is not known on which machines the ranks of a job run.
    warnings = [*(crowded(times.ranks) if by in LAUNCHERS else []), *disturbed(times)]
    document = {**collective_document(times, summary, by), "warnings": warnings}
    folder, missing = write_collective(times, summary, document, out)
    if as_json:
        show(json.dumps(document, indent=2, allow_nan=False))
        return
    from deep5.bench.collective.report import collective_table
    from deep5.core.terminal import printed

    show(printed(lambda console: collective_table(summary, console, warnings)))
    for sentence in (*missing, f"the result is in {folder}"):
        show(sentence)


def _plan(
    known: Mapping[str, AllReduceFunction],
    *,
    algorithms: str | None,
    sizes: str | None,
    dtype: str,
    op: str,
    segment: str | None,
    rounds: int | None,
    seed: int,
    quick: bool,
) -> Any:
    import numpy as np

    from deep5.bench.collective.plan import DTYPES, CollectivePlan, parse_algorithms, parse_segment, parse_sizes
    from deep5.core.errors import UnknownName

    if dtype not in DTYPES:
        raise UnknownName("element type", dtype, DTYPES)
    return CollectivePlan(
        sizes_bytes=parse_sizes(sizes, np.dtype(dtype).itemsize, most="1M" if quick else "64M"),
        algorithms=parse_algorithms(algorithms, known),
        dtype=dtype,
        op=op,  # type: ignore[arg-type]
        rounds=rounds or (_QUICK_ROUNDS if quick else _ROUNDS),
        segment_bytes=parse_segment(segment),
        seed=seed,
    )


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--ranks", type=int, metavar="N", help="Number of ranks.  [default: 2, or those of the job]"),
        click.option(
            "--algorithms", metavar="NAMES", help="Comma-separated: ring, …, library.  [default: all algorithms]"
        ),
        click.option(
            "--sizes", metavar="4:64M", help="Buffer sizes in bytes, by factors of 4; or 1K,1M; or deepbench."
        ),
        click.option("--dtype", default="float32", show_default=True, metavar="TYPE", help="Element type."),
        click.option("--op", default="sum", show_default=True, metavar="OP", help="sum, max, min or prod."),
        click.option("--segment", metavar="SIZE", help="Segment size of the pipeline.  [default: 128K]"),
        click.option(
            "--rounds", type=click.IntRange(min=1), metavar="N", help="Rounds of calls.  [default: 20; quick: 8]"
        ),
        click.option(
            "--launcher", default="mpiexec", show_default=True, metavar="NAME", help="mpiexec, torchrun or threads."
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the data and the order."
        ),
        click.option("--quick", is_flag=True, help="Fewer rounds and sizes up to 1M."),
        click.option("--out", metavar="DIR", default="results", show_default=True, help="Parent of the result folder."),
        click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON."),
        click.option("--debug", is_flag=True, help="On an error, show the traceback."),
    ]
    for option in reversed(options):
        command = option(command)
    return command
