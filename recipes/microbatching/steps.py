"""The two sides of the recipes: training steps of an undivided network, and of one divided by a plan.

Both use the convolution algorithms of level 0, whose workspace grows with the batch, and the same weights, batches and
rule. Each makes a few steps before timing: their losses are compared, and the growth of resident memory in one step is
measured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import deep5 as d5
from deep5.measuring.loops import peak_growth_bytes
from deep5.networks.microbatching.planner import plan_microbatches
from deep5.networks.network import Network
from deep5.networks.transforms.convolution_algorithms import convolutions_by
from deep5.recipes.overhead.by_deep5 import BATCHES, batches

__all__ = ["Steps", "planned", "undivided"]

_COMPARED = 4


class Steps:
    """Training steps by plain SGD, `steps` per call.

    Args:
        executor: The network's executor.
        feeds: Batches, used cyclically.
        batch_size: Samples per batch.
        steps: Steps per call.
        rate: The learning rate of SGD.

    Attributes:
        reported: `losses` of the first steps, and `step_bytes`, the growth of the process's resident memory in one of
            them; None if the system does not report it.
    """

    def __init__(
        self, executor: Any, feeds: Sequence[Mapping[str, Any]], *, batch_size: int, steps: int, rate: float
    ) -> None:
        self._executor, self._feeds, self._steps = executor, feeds, steps
        self._step, self._batch_size, self._done = executor.train_step(d5.SGD(lr=rate)), batch_size, 0
        self.reported: dict[str, Any] = {"losses": [self._one() for _ in range(_COMPARED)]}
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # return freed memory, whose reuse would not be visible
        self.reported["step_bytes"] = peak_growth_bytes(self._one)

    def _one(self) -> float:
        info = d5.StepInfo(step=self._done, batch_size=self._batch_size)
        outputs = self._step(self._feeds[self._done % BATCHES], info)
        self._done += 1
        return float(d5.to_numpy(outputs["loss"]))

    def __call__(self) -> None:
        """Run the steps and synchronize."""
        for _ in range(self._steps):
            self._one()
        self._executor.synchronize()


def _network(
    network: Callable[..., Network], network_kwargs: Mapping[str, Any], algorithms: Sequence[str], seed: int
) -> Network:
    made = network(**network_kwargs, seed=seed)
    for algorithm in algorithms:
        made = convolutions_by(made, algorithm)
    return made


def undivided(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    network_kwargs: Mapping[str, Any],
    batch_size: int,
    algorithms: Sequence[str],
    rate: float,
) -> Steps:
    """The undivided network.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of the framework.
        framework: Name of the back-end.
        network: Makes the network.
        network_kwargs: Arguments of `network`.
        batch_size: Samples per step.
        algorithms: Convolution algorithms: each takes the convolutions that it supports among those left by the
            previous one.
        rate: The learning rate of SGD; the loss must fall, since divergence amplifies rounding errors.
    """
    found = d5.framework(framework)
    found.set_threads(threads)
    made = _network(network, network_kwargs, algorithms, seed)
    return Steps(found.executor(made), batches(made, batch_size, seed), batch_size=batch_size, steps=steps, rate=rate)


def planned(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    network_kwargs: Mapping[str, Any],
    batch_size: int,
    algorithms: Sequence[str],
    rate: float,
    limit_mib: float | None,
    sizes: str | Sequence[int] = "powers",
    shared: bool = False,
    rounds: int = 3,
) -> Steps:
    """The network divided by a plan, which is measured first; `reported` includes the plan.

    Args:
        steps: As in `undivided`, like the following ones.
        seed: The same.
        threads: The same.
        framework: The same.
        network: The same.
        network_kwargs: The same.
        batch_size: The same.
        algorithms: The same.
        rate: The same.
        limit_mib: Maximum workspace of a layer, or of all layers together, in MiB; None: no limit.
        sizes: As for `plan_microbatches`.
        shared: As for `plan_microbatches`.
        rounds: As for `plan_microbatches`.
    """
    found = d5.framework(framework)
    found.set_threads(threads)
    made = _network(network, network_kwargs, algorithms, seed)
    limit = None if limit_mib is None else int(limit_mib * 2**20)
    plan = plan_microbatches(
        made, batch_size, limit, framework=found, sizes=sizes, shared=shared, rounds=rounds, seed=seed
    )
    work = Steps(
        found.executor(plan.applied(made)),
        batches(made, batch_size, seed),
        batch_size=batch_size,
        steps=steps,
        rate=rate,
    )
    work.reported |= {"plan": plan, "report": str(plan)}
    return work
