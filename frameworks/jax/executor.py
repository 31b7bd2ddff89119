"""`JAXExecutor`: a network on JAX, where every call is one compiled function if JAX can trace it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Unpack

import jax
from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
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

    JAX arrays are immutable: `parameters()` and `buffers()` return the current live arrays, and a step, `write` or
    `load_state_dict` replaces them. A training step donates the memory of the old arrays to the new ones: it deletes
    arrays that an earlier `parameters()` returned, unless NumPy views of them still exist. `state_dict()` returns
    permanent copies.

    Calls return before the work is done, unless the network contains compiled operators: the call then raises their
    errors, and changes nothing on failure. `synchronize` waits. Inputs may be overwritten as soon as a call returns.

    If an operator must know a value that is computed or fed (a shape, axes, starts, pads, k, repeats, a loop condition;
    see `host.find_host_values`), JAX cannot trace the network. It then runs operator by operator, and the host reads
    such values; steps are not compiled as a whole. Values computed from dimensions and constants only are known while
    JAX traces.

    64-bit types are enabled only for the duration of a call; the process's own setting does not change.

    Args:
        network: The network; it is not changed.
        program: The network as functions that JAX traces.
        device: The device to run on.
        seed: The seed of noise only.

    Raises:
        Unsupported: JAX does not find the device.

    Attributes:
        source: The generated Python source of the forward pass in evaluation.
        capabilities: `"float64"`, and `"whole_step"` if JAX can trace the network.
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
        """Use batch normalization statistics of the batch of all ranks, starting with the next training pass.

        Raises:
            Unsupported: Ranks are threads. They share XLA's thread pool, and ranks that wait for others could block all
                its threads.
        """
        if ranks.in_threads:
            raise Unsupported(
                "jax waits for other ranks in XLA's threads, which ranks that are threads share; got "
                "synchronise_batch_norm with such ranks; allowed: ranks that are processes; remedy: --launcher mpiexec "
                "or torchrun, or synchronise_batch_norm=False"
            )
        program: Any = self.program  # a graph's program, as the scheme has checked
        program.synchronise_batch_norm(ranks)
        self._train = self.compiled(self._training)
        self._backward.clear()

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        self._recent = inputs, training, info
        if self._feeding is not None and self._feeding.is_fed(inputs):
            return self._feeding.inference(inputs, training, info)
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
        if wrt is not None and wrt is not self._direct and (between := self._between(wrt)):
            return self._backprop_between(
                between,
                inputs,
                loss,
                info=info,
                wrt=wrt,
                accumulate=accumulate,
                loss_scale=loss_scale,
                on_gradient=on_gradient,
            )
        names = self._trained if wrt is None and self._trained else self._check_wrt(wrt)
        return self.backpropagate(
            inputs, loss, names, self._values, info, (accumulate, loss_scale), on_gradient=on_gradient
        )

    def lend(self, other: GraphExecutor) -> None:
        """Give the executor of a variant the live arrays; see `TensorsByName.lend`."""
        if isinstance(other, JAXExecutor):
            other.adopt(self)
        else:
            super().lend(other)

    def adopt(self, lender: JAXExecutor) -> None:
        """Use the live arrays of another executor, until they change."""
        kept, own = lender.program.stored, self.program.stored
        with jax.enable_x64(True):
            values = dict(zip(lender._names, lender._values, strict=True))
            self._values = tuple(
                values[name] if kept.get(name) == own.get(name) else self.turn(name, lender.present(name, values[name]))
                for name in self._names
            )
        self._buffers = tuple(lender._buffers[lender._buffer_index[name]] for name in self._buffer_index)

    def take_back(self, other: GraphExecutor) -> None:
        """Use the buffers that the executor of a variant computed; see `TensorsByName.take_back`."""
        new = other.buffers()
        self._buffers = tuple(
            new.get(name, value) for name, value in zip(self._buffer_index, self._buffers, strict=True)
        )

    def _addends(self) -> Arrays:
        return self._gradients or {}

    def _set_gradients(self, values: Mapping[str, Any] | None) -> None:
        self._gradients, self._without = None if values is None else dict(values), "the last call failed"

    def _sum(self, first: Array, second: Array) -> Array:
        with jax.enable_x64(True):
            return first + second

    def parameters(self) -> Arrays:
        """The live parameters, as JAX arrays; the next training step deletes them."""
        return {name: self.present(name, value) for name, value in zip(self._names, self._values, strict=True)}

    def buffers(self) -> Arrays:
        """The live running statistics, same as `parameters`."""
        return dict(zip(self._buffer_index, self._buffers, strict=True))

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> JAXStep:
        return JAXStep(self, rule, loss=loss, **options)

    def synchronize(self) -> None:
        """Wait until the results of this thread's last call exist; see `GraphExecutor.synchronize`.

        Raises:
            OperatorError: A compiled operator failed in the meantime.
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
