"""`Pair`: an executor under test and the reference's, which run the same calls; the result of each is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from deep5.core import plugins
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.seeds import generator
from deep5.core.tensors import Arrays, to_numpy
from deep5.core.worker_threads import begin
from deep5.networks.judge import Judge
from deep5.networks.network import Network

__all__ = ["TOLERANCE", "Feed", "Pair", "copied", "elsewhere"]

Feed = dict[str, np.ndarray]
_Result = TypeVar("_Result")

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative to the largest expected element. The networks are smooth, so that rounding errors do not grow: some tens of
roundings of 1e-16, 6e-8, 5e-4 and 4e-3."""

# A gradient whose terms cancel is only as exact as the terms: relative to the largest element of all gradients.
_REMAINDER = 1e-3


def copied(values: Arrays) -> Feed:
    """NumPy copies of native values."""
    return {name: np.array(to_numpy(value)) for name, value in values.items()}


def elsewhere(call: Callable[[], _Result]) -> _Result:
    """The result of a call on a separate thread."""
    with ThreadPoolExecutor(1, initializer=begin) as pool:
        return pool.submit(call).result()


class Pair:
    """An executor under test and the reference's executor, of one network.

    Every call runs on both, and everything that it returns is compared, so that no result of a check goes unseen. The
    call must leave its inputs unchanged.

    Args:
        framework: The back-end.
        network: The network.
        dtype: The element type that determines the tolerance.
        executor: The back-end's executor of the network, if there is one already: it has compiled some calls.
    """

    def __init__(
        self, framework: Framework, network: Network, dtype: str, executor: GraphExecutor | None = None
    ) -> None:
        self.network, self.dtype = network, dtype
        self.judge = Judge(f"{framework.name} on {network.model.graph.name} in {dtype}", TOLERANCE[dtype])
        self.executor: GraphExecutor = framework.executor(network) if executor is None else executor
        self.reference: GraphExecutor = plugins.framework("reference").executor(network)
        self.names = list(network.parameter_specs)
        # No value is zero, as initial biases are: a wrong factor would not be seen.
        draw = generator(0, "check_executor", "start")
        self.start = {
            name: (value + draw.uniform(0.1, 0.2, value.shape)).astype(value.dtype)
            for name, value in self.reference.state_dict().items()
        }
        self.load_start()

    def inference(self, feed: Mapping[str, np.ndarray], what: str, **options: Any) -> Arrays:
        """Compare `inference`; returns the native outputs."""
        before = copied(feed)
        outputs = self.executor.inference(feed, **options)
        self.outputs(outputs, self.reference.inference(before, **options), f"inference {what}")
        self.judge.identical(feed, before, f"inference {what} changed the input")
        return outputs

    def backprop(self, feed: Mapping[str, np.ndarray], what: str, loss: str = "loss", **options: Any) -> Arrays:
        """Compare the outputs and the gradients of `inference_and_backprop`; returns the native gradients."""
        before = copied(feed)
        outputs = self.executor.inference_and_backprop(feed, loss, **options)
        self.outputs(outputs, self.reference.inference_and_backprop(before, loss, **options), f"backprop {what}")
        self.judge.identical(feed, before, f"backprop {what} changed the input")
        return self.gradients(f"backprop {what}")

    def gradients(self, what: str) -> Arrays:
        """Compare `gradients`; returns the native ones."""
        gradients, want = self.executor.gradients(), copied(self.reference.gradients())
        names = sorted(gradients)
        self.judge.require(names == sorted(want), f"{what}: gives gradients by {names}", sorted(want))
        largest = max((float(np.max(np.abs(value), initial=0.0)) for value in want.values()), default=0.0)
        least = _REMAINDER * largest if np.isfinite(largest) else 0.0
        for name, value in want.items():
            self.judge.alike(gradients[name], value, f"{what}: the gradient by {name!r}", least)
        return gradients

    def step(self, steps: tuple[Any, Any], feed: Mapping[str, np.ndarray], info: StepInfo, what: str) -> None:
        """Compare a training step's outputs, and the parameters and buffers after it.

        Args:
            steps: The step of the executor, and that of the reference.
            feed: The inputs.
            info: The step.
            what: Description of the inputs.
        """
        before = copied(feed)
        self.outputs(steps[0](feed, info), steps[1](before, info), f"a training step {what}")
        self.judge.identical(feed, before, f"a training step {what} changed the input")
        self.state(f"after a training step {what}")

    def state(self, what: str) -> None:
        """Compare `state_dict`, `parameters` and `buffers`, which hold the same bits, with the reference's."""
        got, want = self.executor.state_dict(), self.reference.state_dict()
        self.judge.require(got.keys() == want.keys(), f"{what}: has the state {sorted(got)}", sorted(want))
        for name, value in want.items():
            self.judge.alike(got[name], value, f"{what}: {name!r}")
        live = {**self.executor.parameters(), **self.executor.buffers()}
        self.judge.require(live.keys() == got.keys(), f"{what}: has the live values {sorted(live)}", sorted(got))
        self.judge.identical(live, got, f"{what}: parameters() or buffers() differs from state_dict() in")
        packed = np.concatenate([got[name].reshape(-1) for name in self.names])
        out = np.full_like(packed, -1)
        self.executor.read(self.names, out)
        self.judge.identical({"packed": out}, {"packed": packed}, f"{what}: read gave")
        exported = self.executor.export(evaluation=False)
        self.judge.identical({name: exported.initial(name) for name in got}, got, f"{what}: export gave other bits of")

    def load_start(self) -> None:
        """Give both the values again from which they started."""
        self.executor.load_state_dict(self.start)
        self.reference.load_state_dict(self.start)
        self.judge.identical(self.executor.state_dict(), self.start, "load_state_dict gave other bits:")

    def outputs(self, got: Arrays, want: Arrays, what: str) -> None:
        """Compare outputs with the reference's."""
        expected = copied(want)
        self.judge.require(list(got) == list(expected), f"{what}: returned the outputs {list(got)}", list(expected))
        for name, value in expected.items():
            self.judge.alike(got[name], value, f"{what}: the output {name!r}")
