"""`JAXExecutor`: a network on JAX, every call one compiled function where JAX can trace it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Unpack

import jax
from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, Device
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.functions import JAXNetwork
from deep5.frameworks.jax.program import Program
from deep5.frameworks.jax.settings import product_kernels, read_settings
from deep5.frameworks.jax.step import JAXStep
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import StepOptions

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["JAXExecutor"]


class JAXExecutor(JAXNetwork):
    """A network on JAX; implements `GraphExecutor`.

    JAX's arrays cannot be written to: `parameters()` and `buffers()` give those that are live now, and a step, `write`
    or `load_state_dict` puts others in their place. A training step donates the memory of the old ones to the new:
    arrays that `parameters()` gave before it are deleted by it, unless NumPy views of them are still held. Copies that
    stay are `state_dict()`'s.

    Calls return before the work is done, unless the network holds compiled operators: what they say when they fail is
    raised by the call, which then changes nothing. `synchronize` waits. Inputs may be overwritten as soon as a call
    returns.

    Where an operator must know a value that is computed or fed (a shape, axes, starts, pads, k, repeats, a loop's
    condition; `host.find_host_values` says which), JAX cannot trace the network. It then runs operator by operator, and
    such values are read on the host; no step is compiled as a whole. What is computed of extents and constants alone is
    known while JAX traces.

    64-bit types are switched on for the length of a call only; the process's own setting is not touched.

    Args:
        network: The network; it is not changed.
        program: The network as functions that JAX traces.
        device: Where it runs.
        seed: Of noise alone.

    Raises:
        Unsupported: A device that JAX does not see.

    Attributes:
        source: The generated Python source of the forward pass in evaluation.
        capabilities: `"float64"`, and `"whole_step"` where JAX can trace the network.
    """

    capabilities = frozenset({"float64", "whole_step"})

    def __init__(self, network: Network | NativeNetwork, program: Program, *, device: Device, seed: int = 0) -> None:
        super().__init__(network, program, device=device, seed=seed)
        self.source = program.evaluation.source
        self._trained = tuple(network.trained_specs)
        if program.untraceable:
            self.capabilities = self.capabilities - {"whole_step"}
        self._evaluate = self.compiled(self._evaluation)
        self._train = self.compiled(self._training)

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Take statistics of batch normalisation from the batch of all ranks, from the next pass in training on.

        Raises:
            Unsupported: Ranks that are threads share XLA's threads, and those that wait for others may take them all.
        """
        if ranks.in_threads:
            raise Unsupported(
                "jax waits for other ranks in threads of XLA's own, which ranks that are threads share; got "
                "synchronise_batch_norm with such ranks; allowed: ranks that are processes; remedy: --launcher mpiexec "
                "or torchrun, or synchronise_batch_norm=False"
            )
        program: Any = self.program  # a graph's, as a scheme has seen to
        program.synchronise_batch_norm(ranks)
        self._train = self.compiled(self._training)
        self._backward.clear()

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        feed, extents = self._feed(inputs, empty=not training)
        with jax.enable_x64(True), named_failures():
            if training:
                feed += self.program.draw(extents, self._info(info))
                outputs, self._buffers = self.settled(self._train(self._values, self._buffers, feed))
            else:
                feed += self.program.evaluation_key(self._info(info))
                outputs = self.settled(self._evaluate(self._values, self._buffers, feed))
        self._pending.results = outputs
        return dict(zip(self._outputs, outputs, strict=True))

    @override
    def inference_and_backprop(
        self,
        inputs: Arrays,
        loss: str = "loss",
        *,
        info: StepInfo | None = None,
        wrt: Sequence[str] | None = None,
        accumulate: bool = False,
        loss_scale: float = 1.0,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        names = self._trained if wrt is None and self._trained else self._check_wrt(wrt)
        return self.backpropagate(
            inputs, loss, names, self._values, info, (accumulate, loss_scale), on_gradient=on_gradient
        )

    def parameters(self) -> Arrays:
        """The parameters that are live now, as JAX arrays; the next training step deletes them."""
        return {name: self.present(name, value) for name, value in zip(self._names, self._values, strict=True)}

    def buffers(self) -> Arrays:
        """The running statistics that are live now, as `parameters`."""
        return dict(zip(self._buffer_index, self._buffers, strict=True))

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> JAXStep:
        return JAXStep(self, rule, loss=loss, **options)

    def synchronize(self) -> None:
        """Return when the results of this thread's last call are there; see `GraphExecutor.synchronize`.

        Raises:
            OperatorError: A compiled operator failed meanwhile.
        """
        with named_failures():
            jax.block_until_ready((self._pending.take(), self._values, self._buffers))

    @override
    def settings(self) -> dict[str, Any]:
        found = {**read_settings(self.device), **self._dtype_settings(self._values)}
        for value in self._values[:1]:
            (place,) = value.devices()
            found["device"] = "cpu" if place.platform == "cpu" else f"cuda:{place.id}"
        return found

    def _product_kernels(self, dtype: str) -> str:
        return product_kernels(dtype, self._place)

    def _evaluation(self, values: Any, buffers: Any, feed: Any) -> Any:
        with self.types():
            return self.program.evaluation.call(values, buffers, feed)[0]

    def _training(self, values: Any, buffers: Any, feed: Any) -> Any:
        with self.types():
            return self.program.training.call(values, buffers, feed)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        step = None if self._step is None else self._step()
        with nullcontext() if step is None else step.averaged():
            yield
