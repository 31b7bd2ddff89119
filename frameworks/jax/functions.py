"""`JAXNetwork`: live arrays, and the functions over them that JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, Unsupported
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, Device, aligned_empty, numpy_dtype, to_numpy
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.pending import Pending
from deep5.frameworks.jax.program import Program
from deep5.frameworks.jax.settings import find_device
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.training.training_executor import TrainingExecutor

__all__ = ["JAXNetwork"]

# From this size on, JAX copies unaligned arrays slowly; it copies smaller arrays within the call.
_LARGE_BYTES = 1 << 16


class JAXNetwork(TrainingExecutor):
    """The base of JAX's executors and steps: live values, and functions over them.

    Args:
        network: The network; it is not changed.
        program: The network as functions that JAX traces.
        device: The device to run on.
        seed: The seed of noise only.

    Raises:
        Unsupported: JAX does not find the device.

    Attributes:
        program: As given.
    """

    def __init__(self, network: Network | NativeNetwork, program: Program, *, device: Device, seed: int = 0) -> None:
        super().__init__(network, device=device, seed=seed)
        self._place = find_device(device)
        self.program = program
        self._names, self._outputs = tuple(network.parameter_specs), tuple(network.outputs)
        self._index = {name: at for at, name in enumerate(self._names)}
        self._buffer_index = {name: at for at, name in enumerate(network.buffer_specs)}
        self._inputs_index = {name: at for at, name in enumerate(network.inputs)}
        self._values = tuple(self.store(name, network.initial(name)) for name in self._names)
        self._buffers = tuple(self.store(name, network.initial(name)) for name in network.buffer_specs)
        self._backward: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._gradients: dict[str, Any] | None = None
        self._without = "nothing has run backward yet"
        self._pending = Pending()

    def _dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        # JAX shares aligned NumPy memory and reads it later: it must get an array that nothing else uses.
        if type(value) is not np.ndarray:
            if isinstance(value, jax.Array):
                return value if value.device == self._place else jax.device_put(value, self._place)
            try:
                value = to_numpy(value)
            except Unsupported as error:
                raise ShapeError(f"input {name!r}: {error}") from error
        if not value.dtype.isnative:
            return value.astype(value.dtype.newbyteorder("="))
        if value.nbytes < _LARGE_BYTES:
            return value.copy()
        return _aligned(value)

    def store(self, name: str, value: np.ndarray) -> Any:
        """A copy of a parameter or buffer in storage order."""
        with jax.enable_x64(True):
            return jax.device_put(_aligned(self.turn(name, value)), self._place)

    def turn(self, name: str, value: Any) -> Any:
        """Converts a NumPy or JAX array from the parameter's own axis order to storage order."""
        storage = self.program.stored.get(name)
        return value if storage is None else storage.store(value)

    def present(self, name: str, value: Any) -> Any:
        """The inverse of `turn`."""
        storage = self.program.stored.get(name)
        return value if storage is None else storage.present(value)

    def _live(self, name: str) -> Any:
        at = self._index.get(name)
        return self.present(
            name, np.asarray(self._buffers[self._buffer_index[name]] if at is None else self._values[at])
        )

    def _assign(self, name: str, value: np.ndarray) -> None:
        new, at = self.store(name, value), self._index.get(name)
        if at is not None:
            self._values = (*self._values[:at], new, *self._values[at + 1 :])
        else:
            at = self._buffer_index[name]
            self._buffers = (*self._buffers[:at], new, *self._buffers[at + 1 :])

    def backpropagate(
        self,
        inputs: Arrays,
        loss: str,
        names: tuple[str, ...],
        values: tuple[Any, ...],
        info: StepInfo | None,
        options: tuple[bool, float] = (False, 1.0),
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Same as `inference_and_backprop`, at given values of the parameters in storage order.

        Args:
            inputs: Same as for `inference_and_backprop`.
            loss: Same as for `inference_and_backprop`.
            names: Values to differentiate with respect to.
            values: Values of all parameters.
            info: Same as for `inference_and_backprop`.
            options: `accumulate` and `loss_scale`.
            on_gradient: Same as for `inference_and_backprop`.
        """
        accumulate, scale = options
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        feed, extents = self._feed(inputs)
        earlier, self._gradients = ((self._gradients or {}) if accumulate else {}), None  # no gradients if this fails
        self._without = "the last inference_and_backprop failed"
        added = tuple(name for name in names if name in earlier)
        if type(loss) is not str:
            self._check_loss(loss)
        key = (loss, names, added)
        run = self._backward.get(key) or self._compile_backward(*key)
        # A factor of 1 is omitted: XLA merges constants, which a fed factor would separate.
        factor = None if (scale := self._check_scale(loss, scale)) == 1.0 else scale
        before = tuple(earlier[name] for name in added)
        for name in added:
            if name in self._inputs_index:
                self._check_sum(name, earlier[name].shape, feed[self._inputs_index[name]].shape)
        with jax.enable_x64(True), named_failures():
            feed += self.program.draw(extents, self._info(info))
            outputs, self._buffers, gradients = self.settled(run(values, self._buffers, feed, factor, before))
        self._gradients = {**earlier, **dict(zip(names, gradients, strict=True))}
        self._pending.results = outputs
        if on_gradient is not None:
            for name, gradient in zip(names, gradients, strict=True):
                on_gradient(name, gradient)
        return dict(zip(self._outputs, outputs, strict=True))

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`.

        Raises:
            Unsupported: There are no gradients; a whole compiled step does not return them.
        """
        if self._gradients is None:
            self._refuse_gradients()
        return dict(self._gradients)

    def differentiated(self, loss: str, names: Sequence[str]) -> Callable[..., tuple[Any, Any, tuple[Any, ...]]]:
        """A function from (values, buffers, feed, scale) to (outputs, new buffers, gradients in storage order)."""
        own = [self._index[name] for name in names if name in self._index]
        fed = [self._inputs_index[name] for name in names if name not in self._index]
        order = [name for name in names if name in self._index] + [name for name in names if name not in self._index]
        places = [order.index(name) for name in names]
        output = self._outputs.index(loss)

        def run(values: Any, buffers: Any, feed: Any, scale: Any) -> Any:
            def scaled(chosen: Any) -> Any:
                full, given = list(values), list(feed)
                for at, value in zip(own, chosen, strict=False):
                    full[at] = value
                for at, value in zip(fed, chosen[len(own) :], strict=True):
                    given[at] = value
                outputs, new = self.program.training.call(full, buffers, given)
                root = outputs[output]
                return root if scale is None else root * scale, (outputs, new)

            with self.types():
                chosen = (*(values[at] for at in own), *(feed[at] for at in fed))
                (_, (outputs, new)), gradients = jax.value_and_grad(scaled, has_aux=True)(chosen)
            return outputs, new, tuple(gradients[place] for place in places)

        return run

    def compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The function compiled, or itself if JAX cannot trace the program; options are those of `jax.jit`."""
        made: Callable[..., Any] = function if self.program.untraceable else jax.jit(function, **options)
        return made

    def settled(self, results: Any) -> Any:
        """The results of a call, after checking that it did not fail."""
        return jax.block_until_ready(results) if self.program.fallible else results

    def types(self) -> Any:
        """The context in which the program is traced."""
        return nullcontext() if self.program.x64 else jax.enable_x64(False)

    def _compile_backward(self, loss: str, names: tuple[str, ...], added: tuple[str, ...]) -> Callable[..., Any]:
        self._check_loss(loss)
        function = self.differentiated(loss, names)

        def run(values: Any, buffers: Any, feed: Any, scale: Any, before: Any) -> Any:
            outputs, new, found = function(values, buffers, feed, scale)
            gradients = {name: self.present(name, value) for name, value in zip(names, found, strict=True)}
            for name, earlier in zip(added, before, strict=True):
                gradients[name] = earlier + gradients[name]
            return outputs, new, tuple(gradients.values())

        compiled = self._backward[loss, names, added] = self.compiled(run)
        return compiled


def _aligned(value: np.ndarray) -> np.ndarray:
    """A copy that JAX can use without copying again."""
    own: np.ndarray = aligned_empty(value.shape, value.dtype)
    own[...] = value
    return own
