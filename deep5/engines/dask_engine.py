"""`DaskEngine`: runs on the workers of a Dask cluster, which share a file system with this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

import dask
import distributed

from deep5.core.errors import UsageError
from deep5.engines.claims import check_workers

__all__ = ["DaskEngine"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# A run is repeated by its sweep, which counts the attempts, and not by Dask.
_SETTINGS = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.daemon": False}
_CONNECT_S = 15.0
_AWAY = ",shared=no"
_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/\s]+:[0-9]+")


class DaskEngine(Executor):
    """Calls functions on Dask workers.

    Without an address, it starts a cluster on this machine. A cluster with an address is used as it is: start each
    worker with one thread (`dask worker ADDRESS --nthreads 1`), and the scheduler with
    `DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=0`. Runs on one machine have disjoint processors in either case.

    Args:
        workers: Number of workers of a new cluster.
        processors_each: Number of processors of each.
        options: Address of a scheduler, such as `tcp://10.0.0.1:8786`; empty: a new cluster. `,shared=no` after it: its
            workers do not see the folder of the results, which return over the network.

    Attributes:
        queue_limit_s: How long a call may wait until it starts.
        shared: Whether workers see the folder of the results.

    Raises:
        UsageError: There are too few processors, or no scheduler answers at the address.

    References:
        Rocklin, "Dask: parallel computation with blocked algorithms and task scheduling", SciPy 2015.
    """

    queue_limit_s = 600.0

    def __init__(self, workers: int = 1, processors_each: int = 1, options: str = "") -> None:
        self.shared = not options.endswith(_AWAY)
        options = options.removesuffix(_AWAY)
        if options and _ADDRESS.fullmatch(options) is None:
            raise UsageError(
                f"dask:{options:.100} is not the address of a scheduler; allowed: one with a port, such as "
                "dask:tcp://10.0.0.1:8786, or dask for a new cluster"
            )
        self._cluster = None if options else _started(workers, processors_each)
        address = options if self._cluster is None else str(self._cluster.scheduler_address)
        try:
            self._client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no scheduler of Dask at {address!r:.100} ({type(error).__name__}: {error}); allowed: its address, "
                "such as dask:tcp://10.0.0.1:8786; remedy: dask scheduler"
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError as error:
            self._client.close()
            raise UsageError(
                f"the scheduler of Dask at {address} has no workers; allowed: at least one; remedy: dask worker "
                f"{address} --nthreads 1"
            ) from error
        self._executor = self._client.get_executor(pure=False, retries=0)

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        """See `concurrent.futures.Executor.submit`."""
        made: Future[_Result] = self._executor.submit(fn, *args, **kwargs)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures.Executor.shutdown`; an own cluster ends, and with it calls under way."""
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _started(workers: int, processors_each: int) -> Any:
    """A cluster on this machine."""
    check_workers(workers, processors_each)
    with dask.config.set(_SETTINGS):
        return distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        )
