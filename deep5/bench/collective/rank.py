"""One rank of a collective measurement, as a process: `python -m deep5.bench.collective.rank PLAN OUT`.

A launcher starts it once per rank. PLAN is the file of a `CollectivePlan`, OUT the file to which rank 0 writes its
`CollectiveTimes`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deep5.core.errors import RunFailed

__all__ = ["main"]


def main(plan_file: str, out_file: str) -> int:
    """Run the measurement and return the exit status.

    Args:
        plan_file: File to read.
        out_file: File that rank 0 writes.
    """
    # An interruption ends the rank without a traceback, also while it imports.
    try:
        return _measure(plan_file, out_file)
    except KeyboardInterrupt:
        return 130


def _measure(plan_file: str, out_file: str) -> int:
    from deep5.bench.collective.measure import measure_collectives
    from deep5.bench.collective.plan import CollectivePlan
    from deep5.core.errors import CommunicationError, Deep5Error, OperationTimeout, UsageError
    from deep5.core.files import write_atomically
    from deep5.distributed.launch.join import Report, join
    from deep5.distributed.launch.launcher import launched

    report = Report()
    report.started()
    try:
        rank = launched()
        if rank is None:
            raise UsageError(
                "this process is the only rank; allowed: one of several ranks; remedy: deep5 bench collective"
            )
        communicator = join(rank)
        times = measure_collectives(communicator, CollectivePlan.from_json(Path(plan_file).read_text("utf-8")))
        if communicator.rank == 0:
            write_atomically(out_file, times.to_json())
        communicator.barrier()
        communicator.close()
    except (Deep5Error, MemoryError) as caught:
        error = caught if isinstance(caught, Deep5Error) else _out_of_memory(caught)
        unreached, late = isinstance(error, CommunicationError), isinstance(error, OperationTimeout)
        report.failed(str(error), error.exit_status, reason=str(error), unreached=unreached, late=late)
        if not report.watched:
            print(f"deep5: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_status
    report.finished(0)
    return 0


def _out_of_memory(error: MemoryError) -> RunFailed:
    from deep5.core.errors import RunFailed

    return RunFailed(
        f"a rank has too little memory for its buffers ({error}); allowed: sizes that fit the memory of all ranks; "
        "remedy: smaller --sizes, or fewer --ranks"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
