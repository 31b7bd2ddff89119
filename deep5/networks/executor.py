"""`NetworkExecutor`: the part of `GraphExecutor` that is the same for every framework.

It checks inputs, and copies parameters and buffers in and out. The framework computes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, TypeVar

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError, brief
from deep5.core.events import StepInfo, check_info
from deep5.core.tensors import Array, Arrays, Device, TensorSpec, dtype_name, to_numpy
from deep5.networks.by_name import TensorsByName
from deep5.networks.diagnostics.failures import is_own
from deep5.networks.feeding import wrong_names
from deep5.networks.limits import Limits
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.networks.strings import check_kinds

__all__ = ["NetworkExecutor"]

_Made = TypeVar("_Made")
# Number of shape combinations to cache; networks for sequences may see many.
_FITTING = 256
# The largest finite number of the element types of a loss other than float64.
_LARGEST = {"float16": 65504.0, "float32": (2 - 2.0**-23) * 2.0**127, "bfloat16": (2 - 2.0**-7) * 2.0**127}


class NetworkExecutor(TensorsByName, ABC):
    """Base class of deep5's executors; implements `GraphExecutor`.

    Args:
        network: The network; it is not changed.
        device: Where it runs.
        seed: Seed of noise only.

    Attributes:
        network: As given; its initial values are the executor's initial state.
        device: As given.
        seed: As given.

    Raises:
        UsageError: `seed` is not an integer from 0 to 2**63 - 1.
    """

    def __init__(self, network: Network | NativeNetwork, *, device: Device, seed: int = 0) -> None:
        if not is_whole(seed) or not 0 <= seed < 1 << 63:
            raise UsageError(f"seed: got {brief(seed)}; allowed: an integer from 0 to 2**63 - 1; remedy: seed=0")
        self.network: Network | NativeNetwork = network
        self.device, self.seed = device, seed
        self._specs: dict[str, TensorSpec] = {**network.parameter_specs, **network.buffer_specs}
        if not self.collections:
            check_kinds(network.inputs, network.outputs, network.nodes if isinstance(network, Network) else ())
        self._inputs = [(name, self._input_dtype(name, spec)) for name, spec in network.inputs.items()]
        # Inputs that are lists or may be None; their structure is kept.
        self._collections = {name: spec for name, spec in network.inputs.items() if spec.collection}
        self._limits = Limits(network, device) if isinstance(network, Network) else None
        self._count = len(self._inputs)
        # Valid shapes, and their symbolic dimensions: a look-up is cheaper than a check.
        self._fitting: dict[tuple[Any, ...], dict[str, int]] = {}
        # Valid losses, and the largest number of their element types.
        self._losses: dict[str, float] = {}

    # The element type of updates, once there is a step that updates parameters of a short type.
    _update_dtype: str | None = None

    collections: ClassVar[bool] = False
    """Whether the framework supports lists of tensors, optional values, and strings."""

    @abstractmethod
    def _dtype(self, name: str) -> Any:
        """The framework's object for an element type, comparable with `native.dtype`."""

    @abstractmethod
    def _native(self, name: str, value: Any) -> Any:
        """Convert an input to an object with `dtype` and `shape` that the framework runs on.

        Raises:
            ShapeError: The input cannot be converted; `name` is for the message.
        """

    @abstractmethod
    def _live(self, name: str) -> Any:
        """The live value of a parameter or buffer."""

    @abstractmethod
    def _assign(self, name: str, value: np.ndarray) -> None:
        """Copy a C-contiguous array of the right shape and dtype into a parameter or buffer."""

    def _float_dtype(self, live: Iterable[Any]) -> str:
        """The floating-point type of the computation: that of the live values, else of the inputs."""
        found = (dtype_name(value.dtype) for value in live)
        declared = (spec.dtype for spec in self.network.inputs.values())
        return next((name for name in (*found, *declared) if name.startswith(("float", "bfloat"))), "none")

    def _product_kernels(self, dtype: str) -> str:
        """The element type of the kernels that compute products of a short type."""
        return dtype

    def _dtype_settings(self, live: Sequence[Any]) -> dict[str, str]:
        """The settings for element types.

        Args:
            live: Parameters.

        Returns:
            `dtype`, and if they differ from it, `compute_dtype` of products and `compute_kernels` of their kernels. If
            a step updates parameters of a short type, `update_dtype`.
        """
        from deep5.networks.transforms.mixed_precision import compute_dtype

        found = {"dtype": self._float_dtype(live)}
        if self._update_dtype is not None:
            found["update_dtype"] = self._update_dtype
        computes = compute_dtype(self.network) if isinstance(self.network, Network) else None
        if computes is None:
            return found
        if computes != found["dtype"]:
            found["compute_dtype"] = computes
        names = computes.split(", ")
        used = [self._product_kernels(name) if name in ("bfloat16", "float16") else name for name in names]
        return {**found, "compute_kernels": ", ".join(dict.fromkeys(used))} if used != names else found

    def _averaged(self) -> Any:
        """A context in which the live parameters are those for evaluation."""
        return nullcontext()

    def _runnable(self, make: Callable[..., _Made], *given: Any, **options: Any) -> _Made:
        """Call a function that makes the network runnable; its foreign exceptions become a `NetworkError`."""
        try:
            return make(*given, **options)
        except Exception as error:
            if is_own(error) or not isinstance(self.network, Network):
                raise  # native code: its author handles what it raises
            raise self.network.refused_by("the back-end", error) from error

    def _feed(self, inputs: Arrays, *, empty: bool = False) -> tuple[list[Any], dict[str, int]]:
        """Native inputs in the network's order, and the symbolic dimensions of this batch.

        Args:
            inputs: As for `inference`.
            empty: Whether a symbolic dimension may be 0; not in training, where a mean over nothing is NaN.

        Raises:
            ShapeError: A missing, unknown or misshapen input, or one with another element type.
            NetworkError: A setting that an operator does not accept, or one of the `Limits`.
        """
        if not isinstance(inputs, (dict, Mapping)) or len(inputs) != self._count:
            self._refuse_fed()
            raise wrong_names(inputs, self.network.inputs, self._feeding)
        feed = []
        for name, dtype in self._inputs:
            try:
                value = inputs[name]
            except KeyError as error:
                raise wrong_names(inputs, self.network.inputs, self._feeding) from error
            if name in self._collections:
                feed.append(self._collected(name, value))
                continue
            value = self._native(name, value)
            if value.dtype != dtype:
                raise ShapeError(
                    f"input {name!r}: got dtype {dtype_name(value.dtype)}, expected {self.network.inputs[name]}"
                )
            feed.append(value)
        for checked in () if self._limits is None else self._limits.fed:
            checked.check(to_numpy(feed[checked.position]))
        shapes = tuple([value.shape for value in feed]) if not self._collections else self._shapes(feed)
        extents = self._fitting.get(shapes)
        return feed, self._check_shapes(shapes, empty) if extents is None else extents

    def _input_dtype(self, name: str, spec: TensorSpec) -> Any:
        try:
            return self._dtype(spec.dtype)
        except (AttributeError, TypeError) as error:
            raise Unsupported(
                f"the input {name!r} holds {spec.dtype}, of which this framework has no tensors"
            ) from error

    def _collected(self, name: str, value: Any) -> Any:
        """A list of tensors, or the value of an optional input, with every tensor converted to a native one."""
        spec = self._collections[name]
        if value is None and spec.collection.startswith("optional"):
            return None
        if spec.collection == "optional":
            return self._element(name, value, spec)
        if not isinstance(value, (list, tuple)):
            raise ShapeError(f"input {name!r}: got {type(value).__name__}, expected {spec}, as a list")
        return [self._element(name, each, spec) for each in value]

    def _element(self, name: str, value: Any, spec: TensorSpec) -> Any:
        made = self._native(name, value)
        if made.dtype != self._dtype(spec.dtype):
            raise ShapeError(f"input {name!r}: got an element of {dtype_name(made.dtype)}, expected {spec}")
        return made

    def _shapes(self, feed: Sequence[Any]) -> tuple[Any, ...]:
        """The shapes of the inputs; () for an input that is not a tensor, as in its specification."""
        held = zip(self.network.inputs, feed, strict=True)
        return tuple(() if name in self._collections else value.shape for name, value in held)

    def _check_shapes(self, shapes: tuple[Any, ...], empty: bool) -> dict[str, int]:
        extents: dict[str, tuple[int, str]] = {}
        for (name, spec), given in zip(self.network.inputs.items(), shapes, strict=True):
            shape = tuple(given)
            if reason := spec.mismatch(shape, spec.dtype):
                raise ShapeError(f"input {name!r}: {reason}")
            for symbol, extent in zip(spec.shape, shape, strict=True):
                if isinstance(symbol, str) and extents.setdefault(symbol, (extent, name))[0] != extent:
                    known, other = extents[symbol]
                    raise ShapeError(
                        f"input {name!r}: got {symbol} = {extent} in shape {shape}, expected {symbol} = {known} as in "
                        f"input {other!r}"
                    )
        found = {symbol: extent for symbol, (extent, _) in extents.items()}
        for symbol, (extent, name) in extents.items():
            if not extent:
                if empty:
                    return found  # not cached: cached shapes are valid in training, too
                raise ShapeError(
                    f"input {name!r}: got {symbol} = 0, nothing to train on; allowed: at least 1; remedy: leave empty "
                    "batches out"
                )
        if self._limits is not None:
            self._limits.check_sizes(found)
        if len(self._fitting) >= _FITTING:
            self._fitting.clear()
        self._fitting[shapes] = found
        return found

    def _info(self, info: StepInfo | None) -> StepInfo:
        """The step that determines the masks."""
        return StepInfo(seed=self.seed) if info is None else check_info(info)

    def _check_loss(self, loss: str) -> None:
        """Reject an output that is not a floating-point scalar."""
        if not isinstance(loss, str):
            raise UsageError(f"got {brief(loss)} as the loss; allowed: a name, {', '.join(self.network.outputs)}")
        spec = self.network.outputs.get(loss)
        if spec is None:
            raise UnknownName("loss", loss, self.network.outputs)
        if spec.shape != () or not spec.dtype.startswith(("float", "bfloat")):
            raise Unsupported(
                f"the output {loss!r}, {spec}, cannot be differentiated; allowed: a scalar that depends on what is "
                "differentiated by"
            )
        self._losses[loss] = _LARGEST.get(spec.dtype, sys.float_info.max)

    def _check_scale(self, loss: str, scale: float) -> float:
        """`loss_scale` as a Python float, for a loss that was checked.

        Raises:
            UsageError: It is not a finite number in the loss's element type.
        """
        largest = self._losses[loss]
        if type(scale) is float and -largest <= scale <= largest:
            return scale
        if isinstance(scale, (int, float, np.integer, np.floating)) and not isinstance(scale, bool):
            # A Python integer may be too large for a float.
            with suppress(OverflowError):
                if -largest <= (number := float(scale)) <= largest:
                    return number
        raise UsageError(
            f"loss_scale: got {brief(scale)} ({type(scale).__name__}); allowed: a finite number, at most {largest:.3g} "
            f"for the loss {loss!r}"
        )

    def _check_wrt(self, wrt: Sequence[str] | None) -> tuple[str, ...]:
        """The names to differentiate by."""
        if wrt is None:
            if not self.network.parameter_specs:
                raise UsageError(
                    "wrt: nothing to differentiate by: the network has no parameters; allowed: names of its inputs and "
                    "values, or a network with parameters; remedy: Network.from_onnx(file, parameters=[…])"
                )
            if self.network.frozen and not self.network.trained_specs:
                raise UsageError(
                    f"wrt: nothing to differentiate by: all {len(self.network.frozen)} parameters are frozen; allowed: "
                    "names of parameters and inputs; remedy: network.unfreeze()"
                )
            return tuple(self.network.trained_specs)
        if isinstance(wrt, str) or not isinstance(wrt, Collection) or not len(wrt):
            raise UsageError(
                f"wrt: nothing to differentiate by, got {brief(wrt)}; allowed: None (all parameters that are not "
                "frozen), or a sequence of names"
            )
        for name in wrt:
            if not isinstance(name, str):
                raise UsageError(f"wrt: got {brief(name)} in it; allowed: names of parameters and inputs")
            spec = self.network.parameter_specs.get(name) or self.network.inputs.get(name)
            if spec is None:
                spec = self._spec_between(name)
            if not spec.dtype.startswith(("float", "bfloat")):
                raise Unsupported(f"no gradient by {name!r}, which is {spec}; allowed: floating-point inputs")
        return tuple(dict.fromkeys(wrt))

    def _check_sum(self, name: str, earlier: tuple[int, ...], given: tuple[int, ...]) -> None:
        """Reject the gradient of an input whose shape differs from the accumulated one."""
        if tuple(earlier) != tuple(given):
            raise ShapeError(
                f"accumulate=True: the gradient by {name!r}: got shape {tuple(given)}, earlier {tuple(earlier)}; "
                "allowed: the same shape in all calls; remedy: batches of one size, or wrt without inputs"
            )

    def read(self, names: Sequence[str], out: Array) -> None:
        """Packed copy out; see `GraphExecutor.read`.

        Raises:
            UnknownName: Unknown parameter or buffer.
            UsageError: `out` is not a contiguous NumPy array.
            ShapeError: `out` has another size or dtype.
        """
        for name, part in self._packed(names, out):
            part[...] = to_numpy(self._live(name)).reshape(-1)

    def write(self, names: Sequence[str], packed: Array) -> None:
        """Packed copy in; see `GraphExecutor.write`. Raises the same errors as `read`."""
        for name, part in self._packed(names, packed):
            self._assign(name, part.reshape(self._shape(name)))

    def _write(self, name: str, value: Any) -> None:
        """Copy a value of the right shape and dtype into a parameter or buffer."""
        self._assign(name, np.asarray(to_numpy(value), order="C"))

    def state_dict(self) -> dict[str, Any]:
        """Copies of parameters and buffers; see `GraphExecutor.state_dict`."""
        return {name: np.array(to_numpy(self._live(name)), order="C") for name in self._specs}

    def state_views(self) -> dict[str, Any]:
        """Like `state_dict`, but views of the live memory where NumPy supports it; read them before the next step."""
        return {name: np.asarray(to_numpy(self._live(name)), order="C") for name in self._specs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` bit by bit.

        Raises:
            UsageError: `state` is not a dict.
            NetworkError: Names are missing or unknown.
            ShapeError: A value has another shape or dtype.
        """
        if not isinstance(state, Mapping):
            raise UsageError(
                f"state: got {brief(state)}; allowed: a dict of arrays by name; remedy: what state_dict() gave"
            )
        missing, unknown = sorted(self._specs.keys() - state.keys()), sorted(state.keys() - self._specs.keys())
        if missing or unknown:
            raise NetworkError(
                f"the state does not fit: missing {missing}, unknown {unknown}; expected the network's own"
            )
        values = {name: np.array(state[name], order="C") for name in self._specs}
        for name, value in values.items():
            if reason := self._specs[name].mismatch(value.shape, str(value.dtype)):
                raise ShapeError(f"the state of {name!r}: {reason}")
        for name, value in values.items():
            self._assign(name, value)

    def export(self, *, evaluation: bool = True) -> Network:
        """The network with the live values; see `GraphExecutor.export`.

        Raises:
            Unsupported: The network is native code without a graph.
        """
        with self._averaged() if evaluation else nullcontext():
            network: Any = self.network
            exported: Network = network.with_values(self.state_dict())  # raises for native code
        return exported

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(extent) for extent in self._specs[name].shape)

    def _packed(self, names: Sequence[str], packed: Any) -> list[tuple[str, np.ndarray]]:
        for name in names:
            if name not in self._specs:
                raise UnknownName("parameter or buffer", name, self._specs)
        if not isinstance(packed, np.ndarray) or not packed.flags.c_contiguous:
            raise UsageError(f"got {type(packed).__name__} that is not contiguous; allowed: a C-contiguous NumPy array")
        size = sum(self._specs[name].size for name in names)
        dtypes = {self._specs[name].dtype for name in names}
        if packed.shape != (size,) or dtypes - {str(packed.dtype)}:
            raise ShapeError(
                f"packed array: got {packed.dtype}{list(packed.shape)}, expected {' and '.join(sorted(dtypes))}[{size}]"
            )
        start, pairs = 0, []
        for name in names:
            extent = self._specs[name].size
            pairs.append((name, packed[start : start + extent]))
            start += extent
        return pairs
