"""`TensorsByName`: reading and writing any tensor of an executor's network by name.

Nothing here runs, and nothing is compiled, until a name is requested.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, UnknownName, Unsupported, UsageError, brief, suggestion
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Array, Arrays, TensorSpec, dtype_name, to_numpy
from deep5.networks.feeding import Feeding
from deep5.networks.native import NativeNetwork
from deep5.networks.nested_names import refuse_nested
from deep5.networks.network import Network
from deep5.networks.variants import Variants

__all__ = ["FedValues", "TensorsByName"]

# Names in a message.
_SHOWN = 8


class FedValues:
    """Runs `inference` while values are fed in place of computed ones; the counterpart of `Feeding`.

    Args:
        variants: Holds the fed values.
        outputs: Names of the network's outputs.
    """

    def __init__(self, variants: Variants, outputs: Sequence[str]) -> None:
        self._variants, self._outputs = variants, tuple(outputs)

    def is_fed(self, inputs: Any) -> bool:
        """Whether a call runs here: every call of `inference` does."""
        return True

    def inference(self, inputs: Arrays, training: bool, info: StepInfo | None) -> Arrays:
        """The network's outputs; see `Variants.inference`.

        Raises:
            UsageError: The call is in training.
        """
        if training:
            self.refuse_training()
        return self._variants.inference(self._outputs, inputs, training, info)

    def refuse_training(self) -> NoReturn:
        """Reject a training pass.

        Raises:
            UsageError: Always.
        """
        names = list(self._variants.fed)
        raise UsageError(
            f"training while {', '.join(map(repr, names))} is fed in place of what the network computes; allowed: "
            f"inference in evaluation; remedy: executor.feed({{{names[0]!r}: None}}), which ends it"
        )


class TensorsByName(GraphExecutor, ABC):
    """The part of an executor that accesses tensors by name: `fetch`, `feed`, and gradients by computed values."""

    if TYPE_CHECKING:
        network: Network | NativeNetwork
        _specs: dict[str, TensorSpec]
        _inputs: list[tuple[str, Any]]

        def _feed(self, inputs: Arrays, *, empty: bool = False) -> tuple[list[Any], dict[str, int]]: ...

        def _check_loss(self, loss: str) -> None: ...

        def _check_scale(self, loss: str, scale: float) -> float: ...

        def _check_wrt(self, wrt: Sequence[str] | None) -> tuple[str, ...]: ...

        def _check_sum(self, name: str, earlier: tuple[int, ...], given: tuple[int, ...]) -> None: ...

        def _write(self, name: str, value: Any) -> None: ...

    # Creates an executor of another network on the same back-end and device.
    _make: Callable[[Network], GraphExecutor] | None = None
    _variants: Variants | None = None
    # Inputs, mode and step of the last `inference`.
    _recent: tuple[Arrays, bool, StepInfo | None] | None = None
    # The last `wrt` without computed values.
    _direct: tuple[str, ...] | None = None
    # Runs calls of `inference` that feed initial values, or with fed computed values; None: all calls run directly.
    _feeding: Feeding | FedValues | None = None
    # The number of inputs of a call; -1 while values are fed in place of computed ones.
    _count: int

    def with_feeding(self, make: Callable[[Network], GraphExecutor]) -> Self:
        """Let calls feed initial values and name computed ones; returns the executor itself.

        Args:
            make: Creates an executor of another network on the same back-end and device.
        """
        self._make = make
        self._accept_initial_values(make)
        return self

    def fetch(
        self,
        names: Sequence[str],
        inputs: Arrays | None = None,
        *,
        training: bool = False,
        info: StepInfo | None = None,
    ) -> dict[str, Array]:
        """Tensors of the network by name.

        Args:
            names: Of parameters and buffers, which are returned as `parameters` and `buffers` return them: live, not
                copied. Of inputs and computed values: these are evaluated for a batch. Of constants: as NumPy arrays.
                Values inside the nested graphs of If, Loop and Scan have no names here.
            inputs: The batch. None: the inputs of the last `inference`, with its mode and step; they are evaluated
                again, with the parameters and fed values as they are now. The executor keeps a reference to these
                arrays, not a copy.
            training: As for `inference`; running statistics do not change. Only with `inputs`.
            info: Likewise.

        Returns:
            The tensors by name, in the order of `names`, as native values. For each set of names, the network is
            compiled once with these outputs.

        Raises:
            UsageError: `names` is not a sequence of names, the network has no such tensor, or a value is computed and
                nothing has run.
            ShapeError: As for `inference`.
            Unsupported: A computed value of native code.
        """
        chosen = self._listed(names)
        live = {**self.parameters(), **self.buffers()} if any(name in self._specs for name in chosen) else {}
        for name in chosen:
            if name not in self._specs and name not in self.network.inputs:
                self._tensor_named(name)
        of_batch = [name for name in chosen if name not in self._specs and not self._is_constant(name)]
        found: dict[str, Any] = {}
        if of_batch:
            batch, mode, step = (inputs, training, info) if inputs is not None else self._last_call(of_batch[0])
            computed = [name for name in of_batch if name not in self.network.inputs]
            found = {name: _given(batch, name) for name in of_batch if name in self.network.inputs}
            if computed:
                found |= self._evaluated(computed, batch, mode, step)
        network = self.network
        for name in chosen:
            if name in live:
                found[name] = live[name]
            elif name not in found and isinstance(network, Network):
                found[name] = network.initial(name)
        return {name: found[name] for name in chosen}

    def feed(self, values: Mapping[str, Any]) -> None:
        """Write tensors of the network by name.

        Args:
            values: Arrays by name; NumPy arrays or native ones. A parameter or buffer is overwritten: the value is
                copied into the live memory. A computed value is replaced in every later `inference` in evaluation, and
                in `fetch`, until None is fed under its name; the executor keeps a reference to the array, and training
                is refused in the meantime.

        Raises:
            UsageError: `values` is not a dict, or the network has no such tensor, or it is an input or a constant.
            ShapeError: A value has another shape or dtype. Nothing has changed.
        """
        if not isinstance(values, Mapping):
            raise UsageError(
                f"feed: got {brief(values)}; allowed: a dict of arrays by name; remedy: executor.feed({{name: array}})"
            )
        written, fed = {}, {}
        for name, value in values.items():
            if isinstance(name, str) and name in self._specs:
                written[name] = self._fed_array(name, value, self._specs[name])
                continue
            if isinstance(name, str) and name in self.network.inputs:
                raise UsageError(
                    f"feed: {name!r} is an input; allowed: parameters, buffers and computed values; remedy: "
                    f"executor.inference({{{name!r}: …}})"
                )
            variants = self._tensor_named(name)
            if name not in variants.computed:
                raise UsageError(
                    f"feed: {name!r} is a constant; allowed: parameters, buffers and computed values; remedy: "
                    "network.with_values({…}) before the executor is made"
                )
            fed[name] = value if value is None else self._fed_array(name, value, variants.spec(name))
        for name, value in written.items():
            self._write(name, value)
        if fed:
            self._feed_computed(fed)

    def _feed_computed(self, fed: Mapping[str, Any]) -> None:
        variants = self._derived()
        variants.fed = {name: value for name, value in {**variants.fed, **fed}.items() if value is not None}
        if variants.fed:
            self._feeding, self._count = FedValues(variants, tuple(self.network.outputs)), -1
        else:
            self._feeding, self._count = None, len(self._inputs)
            if self._make is not None:
                self._accept_initial_values(self._make)

    def _accept_initial_values(self, make: Callable[[Network], GraphExecutor]) -> None:
        """Let `inference` accept initial values that are defaults of inputs, if there are any."""
        if isinstance(self.network, Network) and self.network.default_specs:
            self._feeding = Feeding(self, self.network, make)

    def _refuse_fed(self) -> None:
        """Reject a training pass while computed values are fed."""
        if isinstance(self._feeding, FedValues):
            self._feeding.refuse_training()

    def _spec_between(self, name: str) -> TensorSpec:
        """The specification of a computed value to differentiate by.

        Raises:
            UnknownName: There is no such value.
        """
        own = [*self.network.parameter_specs, *self.network.inputs]
        if self._make is None or not isinstance(self.network, Network):
            raise UnknownName("parameter or input", name, own)
        computed = self._derived().computed
        if name not in computed:
            refuse_nested(self.network.nodes, name, "wrt")
            near = suggestion(name, computed)
            raise UnknownName("parameter or input", name, own, f"or one of {len(computed)} computed values{near}")
        return self._derived().spec(name)

    def _between(self, wrt: Any) -> tuple[str, ...]:
        """The computed values among the names to differentiate by."""
        if isinstance(wrt, str) or not isinstance(wrt, Collection) or self._make is None:
            return ()
        own = (self.network.parameter_specs, self.network.inputs)
        further = [name for name in wrt if isinstance(name, str) and not any(name in specs for specs in own)]
        if not further:
            if type(wrt) is tuple:
                self._direct = wrt
            return ()
        computed = self._derived().computed
        return tuple(dict.fromkeys(name for name in further if name in computed))

    def _backprop_between(
        self,
        between: tuple[str, ...],
        inputs: Arrays,
        loss: str,
        *,
        info: StepInfo | None,
        wrt: Sequence[str],
        accumulate: bool,
        loss_scale: float,
        on_gradient: Callable[[str, Array], None] | None,
    ) -> Arrays:
        """`inference_and_backprop` with gradients by computed values."""
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        _, extents = self._feed(inputs)
        self._check_loss(loss)
        loss_scale, wrt = self._check_scale(loss, loss_scale), self._check_wrt(wrt)
        earlier = dict(self._addends()) if accumulate else {}
        self._set_gradients(None)
        outputs, found = self._derived().backprop(wrt, between, inputs, loss, extents, info, loss_scale)
        for name in found:
            if name in earlier:
                self._check_sum(name, tuple(earlier[name].shape), tuple(found[name].shape))
                found[name] = self._sum(earlier[name], found[name])
        self._set_gradients({**earlier, **found})
        if on_gradient is not None:
            for name, gradient in found.items():
                on_gradient(name, gradient)
        return outputs

    # What a back-end adds:

    def lend(self, other: GraphExecutor) -> None:
        """Before each call of an executor of a variant: it uses the live values of this executor; here as copies."""
        own = self.state_dict()
        names = [*other.network.parameter_specs, *other.network.buffer_specs]
        other.load_state_dict({name: own[name] for name in names})

    def take_back(self, other: GraphExecutor) -> None:
        """After each training pass of such an executor: the buffers that it changed are those of this executor."""
        for name, value in other.buffers().items():
            self._write(name, value)

    def _addends(self) -> Arrays:
        """The gradients to which `accumulate` adds."""
        self._refuse_between()

    def _set_gradients(self, values: Mapping[str, Any] | None) -> None:
        """Let `gradients` return these values; None: there are none."""
        self._refuse_between()

    def _sum(self, first: Array, second: Array) -> Array:
        """The sum of two gradients."""
        return first + second

    def _refuse_between(self) -> NoReturn:
        raise Unsupported(
            f"{type(self).__name__} has no gradients by computed values; allowed: parameters and inputs; remedy: an "
            "executor of deep5"
        )

    # Names:

    def _evaluated(
        self, names: Sequence[str], inputs: Arrays, training: bool, info: StepInfo | None
    ) -> Mapping[str, Any]:
        variants = self._derived()
        if training and variants.fed:
            self._refuse_fed()
        kept = {name: np.array(to_numpy(value)) for name, value in self.buffers().items()} if training else {}
        try:
            return variants.inference(names, inputs, training, info)
        finally:
            for name, value in kept.items():
                self._write(name, value)

    def _derived(self) -> Variants:
        """The executors of variants.

        Raises:
            Unsupported: There are none for this executor.
        """
        if self._variants is None:
            if self._make is None or not isinstance(self.network, Network):
                raise Unsupported(
                    "computed values by name: the network is native code, or the executor was not made by a framework; "
                    "allowed: parameters and buffers; remedy: d5.framework(name).executor(network) of a d5.Network"
                )
            self._variants = Variants(self, self.network, self._make)
        return self._variants

    def _tensor_named(self, name: Any) -> Variants:
        """The variants, if the network computes a value of this name, or has such a constant.

        Raises:
            UsageError: There is no such tensor.
        """
        variants = self._derived()
        if not isinstance(name, str) or not (name in variants.computed or self._is_constant(name)):
            if isinstance(self.network, Network):
                refuse_nested(self.network.nodes, name, "the name of a tensor")
            among = [*self._specs, *self.network.inputs, *variants.computed]
            shown = ", ".join(among[:_SHOWN]) + (", …" if len(among) > _SHOWN else "")
            raise UsageError(
                f"no tensor {brief(name)} in the network; allowed: names of parameters, buffers, inputs and computed "
                f"values: {shown}{suggestion(str(name), among)}; remedy: deep5 show network FILE lists them"
            )
        return variants

    def _is_constant(self, name: str) -> bool:
        network = self.network
        return (
            isinstance(network, Network)
            and name in network.model.graph.initializers
            and name not in self._specs
            and name not in network.inputs
        )

    def _listed(self, names: Any) -> list[str]:
        if isinstance(names, (str, Mapping)) or not isinstance(names, Collection):
            raise UsageError(f"fetch: got {brief(names)}; allowed: a sequence of names; remedy: executor.fetch([name])")
        return list(dict.fromkeys(names))

    def _last_call(self, name: str) -> tuple[Arrays, bool, StepInfo | None]:
        if self._recent is None:
            raise UsageError(
                f"fetch: {name!r} depends on a batch, and inference has not run; allowed: parameters, buffers, and all "
                "values once it has; remedy: executor.fetch(names, inputs)"
            )
        return self._recent

    def _fed_array(self, name: str, value: Any, spec: TensorSpec) -> Any:
        """A value to feed: an array of the right shape and dtype."""
        array = value if hasattr(value, "shape") and hasattr(value, "dtype") else np.asarray(value)
        if reason := spec.mismatch(tuple(map(int, array.shape)), dtype_name(array.dtype)):
            raise ShapeError(f"feed: the value for {name!r}: {reason}; remedy: an array of that shape and dtype")
        return array


def _given(inputs: Arrays, name: str) -> Any:
    if not isinstance(inputs, Mapping) or name not in inputs:
        raise ShapeError(f"missing input {name!r}; got: {', '.join(map(str, inputs)) or 'none'}")
    return inputs[name]
