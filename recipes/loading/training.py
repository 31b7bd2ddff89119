"""Training steps on images that are loaded from files, and on arrays that are already decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count, islice
from typing import Any

import deep5 as d5
from deep5.core.errors import UsageError, brief
from deep5.measuring.page_cache import fill_pages
from deep5.networks.network import Network
from deep5.recipes.loading.files import decoded, image_files, opened, paths_of
from deep5.recipes.loading.sides import AHEAD
from deep5.recipes.overhead.by_deep5 import executor

__all__ = ["from_arrays", "from_files"]

Work = Callable[[], None]


def from_files(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    network_kwargs: Mapping[str, Any],
    images: int,
    size: int,
    batch_size: int,
    form: str,
    decoder: str,
    workers: int,
) -> Work:
    """Training steps by Adam on batches from files, which are in the page cache; a new order in each call.

    Args:
        steps: Steps per call.
        seed: Of weights and order.
        threads: Threads of the framework.
        framework: Name of the back-end.
        network: Makes the network.
        network_kwargs: Its arguments.
        images: Number of images.
        size: Their height and width.
        batch_size: Images of a batch.
        form: A format of `files.FORMATS`.
        decoder: The decoding library.
        workers: Threads that make batches ahead; 0: each batch is made when the step before it has finished.

    Raises:
        UsageError: An argument is out of its range.
        MissingDependency: The framework or the decoder's library is not installed.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= 64:
        raise UsageError(f"training from files with workers={brief(workers)}; allowed: an integer from 0 to 64")
    folder = image_files(images, size, 0)
    fill_pages(paths_of(folder, form))
    source: Any = d5.ShuffleSampler(opened(folder, form, decoder, size), batch_size, seed=seed)
    if workers:
        source = d5.Prefetched(source, depth=AHEAD * workers, workers=workers)
    return _steps(source, executor(framework, threads, network, network_kwargs, seed), steps, batch_size)


def from_arrays(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    network_kwargs: Mapping[str, Any],
    images: int,
    size: int,
    batch_size: int,
) -> Work:
    """The same on decoded arrays in memory; arguments as for `from_files`."""
    source = d5.ShuffleSampler(decoded(image_files(images, size, 0)), batch_size, seed=seed)
    return _steps(source, executor(framework, threads, network, network_kwargs, seed), steps, batch_size)


def _steps(source: Any, made: Any, steps: int, batch_size: int) -> Work:
    if len(source) < steps:
        raise UsageError(
            f"{steps} steps of an epoch of {len(source)} batches; allowed: at most as many; remedy: images="
        )
    step, epochs, done = made.train_step(d5.Adam(lr=0.001)), count(), count()

    def work() -> None:
        for _, batch in islice(source.batches(next(epochs)), steps):
            step(batch, d5.StepInfo(step=next(done), batch_size=batch_size))
        made.synchronize()

    return work
