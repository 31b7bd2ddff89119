"""`JAXExecutor`: a network on JAX, every call one compiled function where JAX can trace it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import ParameterGroup, TrainStep
from deep5.core.tensors import Array, Arrays, Device, aligned_empty, numpy_dtype, to_numpy
from deep5.frameworks.jax.failures import named_failures
from deep5.frameworks.jax.pending import Pending
from deep5.frameworks.jax.settings import find_device, product_kernels, read_settings
from deep5.networks.executor import NetworkExecutor
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deep5.distributed.schemes.batch_statistics import RankStatistics
    from deep5.frameworks.jax.emit import Function
    from deep5.frameworks.jax.step import JAXStep
    from deep5.frameworks.jax.storage import Storage
    from deep5.networks.native import NativeNetwork
    from deep5.networks.network import Network

__all__ = ["JAXExecutor", "Program"]

# Arrays from this size on JAX copies slowly, unless they are aligned; smaller ones within the call.
_LARGE_BYTES = 1 << 16


class Program(Protocol):
    """What an executor runs: two pure functions, which JAX traces."""

    @property
    def evaluation(self) -> Function:
        """The network in evaluation."""
        ...

    @property
    def training(self) -> Function:
        """The network in training, of inputs with the masks behind them; gives new buffers too."""
        ...

    @property
    def stored(self) -> Mapping[str, Storage]:
        """How parameters are stored that are not stored as they are."""
        ...

    @property
    def x64(self) -> bool:
        """Whether the functions are traced with 64-bit types."""
        ...

    @property
    def untraceable(self) -> str:
        """Why JAX cannot trace it, so that it runs operator by operator; empty: JAX can."""
        ...

    @property
    def fallible(self) -> bool:
        """Whether a call may fail once it runs, since it holds compiled operators or waits for other ranks."""
        ...

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step, and its random key; called before each pass in training."""
        ...

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """The random key of a call in evaluation, none where nothing is drawn; called before each."""
        ...


class JAXExecutor(NetworkExecutor):
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
        super().__init__(network, device=device, seed=seed)
        self._place = find_device(device)
        self.program = program
        self.source = program.evaluation.source
        self._names, self._outputs = tuple(network.parameter_specs), tuple(network.outputs)
        self._trained = tuple(network.trained_specs)
        self._index = {name: at for at, name in enumerate(self._names)}
        self._buffer_index = {name: at for at, name in enumerate(network.buffer_specs)}
        self._inputs_index = {name: at for at, name in enumerate(network.inputs)}
        self._values = tuple(self.store(name, network.initial(name)) for name in self._names)
        self._buffers = tuple(self.store(name, network.initial(name)) for name in network.buffer_specs)
        if program.untraceable:
            self.capabilities = self.capabilities - {"whole_step"}
        self._evaluate = self.compiled(self._evaluation)
        self._train = self.compiled(self._training)
        self._backward: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._gradients: dict[str, Any] | None = None
        self._why = "nothing ran backward yet"
        self._pending = Pending()
        self._step: weakref.ref[JAXStep] | None = None

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

    def _dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        # JAX reads aligned memory of NumPy's where it lies, and later: what it gets must be nobody else's.
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
        """A copy of a parameter or buffer as it is stored."""
        with jax.enable_x64(True):
            return jax.device_put(_aligned(self.turn(name, value)), self._place)

    def turn(self, name: str, value: Any) -> Any:
        """An array of NumPy or JAX in the parameter's own order of axes, as it would be stored."""
        storage = self.program.stored.get(name)
        return value if storage is None else storage.store(value)

    def present(self, name: str, value: Any) -> Any:
        """The reverse of `turn`."""
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

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward; see `GraphExecutor.inference`."""
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
        """Run forward and backward as one compiled function; see `GraphExecutor.inference_and_backprop`.

        Raises:
            ShapeError: A missing, unknown or misshapen input, or one of extent 0; a gradient to add to that has
                another shape.
            UnknownName: No such loss, parameter or input.
            Unsupported: A loss that is no floating-point scalar.
            UsageError: Names that are none, a `loss_scale` that is no finite number, an `info` that is no `StepInfo`,
                an `on_gradient` that is no function.
        """
        names = self._trained if wrt is None and self._trained else self._check_wrt(wrt)
        return self.backpropagate(
            inputs, loss, names, self._values, info, (accumulate, loss_scale), on_gradient=on_gradient
        )

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
        """As `inference_and_backprop`, at given values of the parameters, as they are stored.

        Args:
            inputs: As there.
            loss: As there.
            names: What to differentiate by.
            values: Of all parameters.
            info: As there.
            options: `accumulate` and `loss_scale`.
            on_gradient: As there.
        """
        accumulate, scale = options
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        feed, extents = self._feed(inputs)
        earlier, self._gradients = ((self._gradients or {}) if accumulate else {}), None  # none, should this fail
        self._why = "the last inference_and_backprop failed"
        added = tuple(name for name in names if name in earlier)
        if type(loss) is not str:
            self._check_loss(loss)
        key = (loss, names, added)
        run = self._backward.get(key) or self._compile_backward(*key)
        # A factor of 1 is left out: XLA takes constants together, which a fed one stands between.
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
            Unsupported: There are none; after a whole compiled step they have never left it.
        """
        if self._gradients is None:
            raise Unsupported(f"there are no gradients: {self._why}; remedy: call inference_and_backprop first")
        return dict(self._gradients)

    def parameters(self) -> Arrays:
        """The parameters that are live now, as JAX arrays; the next training step deletes them."""
        return {name: self.present(name, value) for name, value in zip(self._names, self._values, strict=True)}

    def buffers(self) -> Arrays:
        """The running statistics that are live now, as `parameters`."""
        return dict(zip(self._buffer_index, self._buffers, strict=True))

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: GradientPipeline | None = None,
    ) -> TrainStep:
        """Forward, backward and update as one compiled function; see `GraphExecutor.train_step`.

        Args:
            rule: The update rule; it is traced.
            loss: As for `inference_and_backprop`.
            groups: Parameter groups.
            modifier: `gradient_modifier(name, param, grad) -> grad`, traced: functions of JAX alone.
        """
        from deep5.frameworks.jax.step import JAXStep

        self._check_loss(loss)
        step = JAXStep(self, rule, loss=loss, groups=groups, modifier=modifier, pipeline=pipeline)
        self._step = weakref.ref(step)
        return step

    def synchronize(self) -> None:
        """Return when the results of this thread's last call are there; see `GraphExecutor.synchronize`.

        Raises:
            OperatorError: A compiled operator failed meanwhile.
        """
        with named_failures():
            jax.block_until_ready((self._pending.take(), self._values, self._buffers))

    def settings(self) -> dict[str, Any]:
        """Read back from JAX and its compiler; see `GraphExecutor.settings`."""
        found = {**read_settings(self.device), "dtype": self._float_dtype(self._values)}
        found |= self._compute_dtype(self._values, self._kernels)
        for value in self._values[:1]:
            (place,) = value.devices()
            found["device"] = "cpu" if place.platform == "cpu" else f"cuda:{place.id}"
        return found

    def _kernels(self, dtype: str) -> str:
        """The element type of the kernels that compute products of one."""
        return product_kernels(dtype, self._place)

    def differentiated(self, loss: str, names: Sequence[str]) -> Callable[..., tuple[Any, Any, tuple[Any, ...]]]:
        """The function of (values, buffers, feed, scale) to (outputs, new buffers, gradients as stored)."""
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
        """A function of the program compiled, or itself where JAX cannot trace the program; options are `jax.jit`'s."""
        made: Callable[..., Any] = function if self.program.untraceable else jax.jit(function, **options)
        return made

    def settled(self, results: Any) -> Any:
        """The results of a call, of which it is known that it did not fail."""
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


def _aligned(value: np.ndarray) -> np.ndarray:
    """A copy that JAX can take over without another one."""
    own: np.ndarray = aligned_empty(value.shape, value.dtype)
    own[...] = value
    return own
