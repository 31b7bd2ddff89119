"""The two sides of the recipes: training steps of a network undivided, and in the parts that a plan found.

Both have convolutions by the algorithms of level 0, whose workspace grows with the batch, and the same weights, batches
and rule. Each is asked for a few steps before anything is timed: their losses are compared, and how far one of them
raises the resident memory is measured.
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
    """Training steps by plain SGD, as many a call as asked for.

    Args:
        executor: Of the network.
        feeds: Batches, used in turn.
        batch_size: Samples of each.
        steps: A call.
        rate: Of SGD.

    Attributes:
        told: `losses` of the first steps, and by how many bytes one of them raised the resident memory of the process,
            `step_bytes`; None where the system does not show it.
    """

    def __init__(
        self, executor: Any, feeds: Sequence[Mapping[str, Any]], *, batch_size: int, steps: int, rate: float
    ) -> None:
        self._executor, self._feeds, self._steps = executor, feeds, steps
        self._step, self._batch_size, self._done = executor.train_step(d5.SGD(lr=rate)), batch_size, 0
        self.told: dict[str, Any] = {"losses": [self._one() for _ in range(_COMPARED)]}
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # what was freed, and would be used again unseen
        self.told["step_bytes"] = peak_growth_bytes(self._one)

    def _one(self) -> float:
        info = d5.StepInfo(step=self._done, batch_size=self._batch_size)
        outputs = self._step(self._feeds[self._done % BATCHES], info)
        self._done += 1
        return float(d5.to_numpy(outputs["loss"]))

    def __call__(self) -> None:
        """The steps, finished."""
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
    """The network as it is.

    Args:
        steps: Steps a call.
        seed: Of weights and batches.
        threads: Of the framework.
        framework: Name of the back-end.
        network: Makes the network.
        network_kwargs: Arguments of `network`.
        batch_size: Samples a step.
        algorithms: Of convolutions: each takes those that it can of what the one before it left.
        rate: Of SGD; one at which the loss falls, as divergence multiplies every rounding.
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
    """The network in the parts of a plan, which is measured first; what it tells has the plan.

    Args:
        steps: As `undivided`, and so those that follow.
        seed: As there.
        threads: As there.
        framework: As there.
        network: As there.
        network_kwargs: As there.
        batch_size: As there.
        algorithms: As there.
        rate: As there.
        limit_mib: The most workspace of a layer, or of all together; None: no limit.
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
    work.told |= {"plan": plan, "report": str(plan)}
    return work
