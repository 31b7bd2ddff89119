"""`PyTorchExecutor`: a network on PyTorch, eager, gradients by torch's own automatic differentiation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from deep5.backend import ParameterGroup, TrainStep
from deep5.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError, suggestion
from deep5.events import StepInfo
from deep5.frameworks.pytorch.emit import compile_forward
from deep5.networks.network import Network
from deep5.tensors import Array, Arrays, Device
from deep5.training.rule import UpdateRule
from deep5.training.step import KernelStep

__all__ = ["PyTorchExecutor"]

# Combinations of shapes to remember; a network for sequences may meet many.
_FITTING = 256


class PyTorchExecutor:
    """A network on PyTorch; made by `PyTorch.executor`. Implements `GraphExecutor`.

    Attributes:
        source: The generated Python source of the forward pass.
    """

    capabilities = frozenset({"early_gradients", "float64"})

    def __init__(self, network: Network, *, device: Device, seed: int = 0) -> None:
        self.network, self.device, self.seed = network, device, seed
        self._place = torch.device(str(device))
        # clone: torch's own allocation, aligned as its kernels like it.
        self._parameters = {
            name: torch.from_numpy(network.initial(name)).clone().to(self._place).requires_grad_()
            for name in network.parameters
        }
        self._buffers = {
            name: torch.from_numpy(network.initial(name)).clone().to(self._place) for name in network.buffers
        }
        self._forward, self.source = compile_forward(network, self._live(), self._place)
        self._inputs = [(name, getattr(torch, spec.dtype)) for name, spec in network.inputs.items()]
        # Shapes that were found to fit: to look one up costs less than to check it again.
        self._fitting: set[tuple[Any, ...]] = set()
        self._outputs = tuple(network.outputs)
        self._seeds: dict[tuple[Any, ...], Any] = {}
        self._wrt: dict[str, Any] | None = None
        self._step: weakref.ref[KernelStep] | None = None

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward without gradients; see `GraphExecutor`."""
        with torch.no_grad():
            return dict(zip(self._outputs, self._forward(*self._feed(inputs), training), strict=True))

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
        """Run forward and backward; see `GraphExecutor`."""
        feed = self._feed(inputs)
        targets = self._parameters if wrt is None else self._targets(wrt, feed)
        before, self._wrt = (self._wrt if accumulate else None), None  # none, should what follows fail
        if before is None:
            for tensor in self._parameters.values():
                tensor.grad = None
        else:
            for name, tensor in targets.items():
                tensor.grad = before[name].grad if name in before else None  # an input is a new leaf each time
        values = self._forward(*feed, True)
        outputs = dict(zip(self._outputs, values, strict=True))
        root = outputs[loss] if loss in outputs else self._refuse_loss(loss)
        if root.numel() != 1 or not root.requires_grad:
            raise Unsupported(
                f"the output {loss!r}, {self.network.outputs[loss]}, cannot be differentiated; allowed: a scalar that "
                "depends on what is differentiated by"
            )
        seed = self._seed(root, loss_scale)
        chosen = None if wrt is None else tuple(targets.values())
        if on_gradient is None:
            torch.autograd.backward((root,), (seed,), inputs=chosen)
        else:
            with _hooks(targets, on_gradient):
                torch.autograd.backward((root,), (seed,), inputs=chosen)
        self._wrt = targets if before is None else {**before, **targets}
        return {name: value.detach() for name, value in outputs.items()}

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`; see `GraphExecutor`."""
        if self._wrt is None:
            raise Unsupported("there are no gradients; remedy: call inference_and_backprop first")
        # A parameter that the loss does not depend on has the gradient zero, as mathematics has it.
        return {
            name: tensor.grad if tensor.grad is not None else torch.zeros_like(tensor, requires_grad=False)
            for name, tensor in self._wrt.items()
        }

    def parameters(self) -> Arrays:
        """The live parameters, detached; see `GraphExecutor`."""
        return {name: tensor.detach() for name, tensor in self._parameters.items()}

    def leaves(self) -> dict[str, Any]:
        """The parameters as torch's optimizers take them: leaves that carry `.grad`."""
        return self._parameters

    def buffers(self) -> Arrays:
        """The live running statistics; see `GraphExecutor`."""
        return dict(self._buffers)

    def read(self, names: Sequence[str], out: Array) -> None:
        """Packed copy out; see `GraphExecutor`."""
        offset = 0
        for tensor in self._named(names, out):
            out[offset : offset + tensor.numel()] = tensor.detach().cpu().numpy().reshape(-1)
            offset += tensor.numel()

    def write(self, names: Sequence[str], packed: Array) -> None:
        """Packed copy in; see `GraphExecutor`."""
        offset = 0
        with torch.no_grad():
            for tensor in self._named(names, packed):
                part = packed[offset : offset + tensor.numel()].reshape(tensor.shape)
                tensor.copy_(torch.from_numpy(part if part.flags.writeable else part.copy()))
                offset += tensor.numel()

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
    ) -> TrainStep:
        """Forward and backward by torch, the update by the compiled rule; see `GraphExecutor`."""
        if self._place.type != "cpu":
            raise Unsupported(
                f"update rules on {self.device}: the compiled rule works on host memory; allowed: the device cpu, or a "
                "native optimizer ('native:adam')"
            )
        step = KernelStep(
            self,
            rule,
            loss=loss,
            groups=groups,
            modifier=modifier,
            threads=torch.get_num_threads(),
            address=_address,
        )
        self._step = weakref.ref(step)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Copies of parameters and buffers; see `GraphExecutor`."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._live().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore parameters and buffers; see `GraphExecutor`."""
        live = self._live()
        if state.keys() != live.keys():
            missing, unknown = sorted(live.keys() - state.keys()), sorted(state.keys() - live.keys())
            raise NetworkError(
                f"the state does not fit: missing {missing}, unknown {unknown}; expected the network's own"
            )
        values = {name: np.array(state[name], order="C") for name in live}
        for name, spec in {**self.network.parameters, **self.network.buffers}.items():
            if reason := spec.mismatch(values[name].shape, str(values[name].dtype)):
                raise ShapeError(f"the state of {name!r}: {reason}")
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(torch.from_numpy(values[name]))

    def export(self, *, evaluation: bool = True) -> Network:
        """The network with the live values; see `GraphExecutor`."""
        step = self._step() if self._step is not None else None
        if evaluation and step is not None and step.averages:
            with step.averaged():
                return self.network.with_values(self.state_dict())
        return self.network.with_values(self.state_dict())

    def synchronize(self) -> None:
        """Wait for the device; on the host there is nothing to wait for."""
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)

    def settings(self) -> dict[str, Any]:
        """Read back from torch; see `GraphExecutor`."""
        specs = (*self.network.parameters.values(), *self.network.inputs.values())
        return {
            "framework": "pytorch",
            "version": torch.__version__,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "dtype": next((spec.dtype for spec in specs if spec.dtype.startswith("float")), "none"),
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32) if self._place.type == "cuda" else False,
            "deterministic": torch.are_deterministic_algorithms_enabled() or self._place.type == "cpu",
        }

    def _live(self) -> dict[str, Any]:
        return {**self._parameters, **self._buffers}

    def _named(self, names: Sequence[str], packed: Any) -> list[Any]:
        live = self._live()
        for name in names:
            if name not in live:
                raise UnknownName("parameter or buffer", name, live)
        if not isinstance(packed, np.ndarray) or not packed.flags.c_contiguous:
            raise UsageError(f"got {type(packed).__name__} that is not contiguous; allowed: a C-contiguous NumPy array")
        tensors = [live[name] for name in names]
        size, dtypes = sum(tensor.numel() for tensor in tensors), {_dtype(tensor) for tensor in tensors}
        if packed.shape != (size,) or dtypes - {str(packed.dtype)}:
            raise ShapeError(
                f"packed array: got {packed.dtype}{list(packed.shape)}, expected {' and '.join(sorted(dtypes))}[{size}]"
            )
        return tensors

    def _feed(self, inputs: Arrays) -> list[Any]:
        if not isinstance(inputs, (dict, Mapping)) or len(inputs) != len(self._inputs):
            self._refuse_names(inputs)
        feed = []
        for name, dtype in self._inputs:
            try:
                value = inputs[name]
            except KeyError:
                self._refuse_names(inputs)
            if isinstance(value, torch.Tensor):
                # Whatever the caller computed it from is not part of this network.
                value = value.detach() if value.requires_grad else value
            elif isinstance(value, np.ndarray) and value.flags.carray:
                try:
                    value = torch.from_numpy(value)
                except (TypeError, ValueError):  # of another byte order, or no numbers
                    value = _tensor(name, value)
            else:
                value = _tensor(name, value)
            if value.dtype is not dtype:
                raise ShapeError(f"input {name!r}: got dtype {_dtype(value)}, expected {self.network.inputs[name]}")
            feed.append(value if value.device == self._place else value.to(self._place))
        shapes = tuple([value.shape for value in feed])
        if shapes not in self._fitting:
            self._check_shapes(shapes)
        return feed

    def _check_shapes(self, shapes: tuple[Any, ...]) -> None:
        """Each input fits its declaration, and an extent with a name is the same wherever it stands."""
        extents: dict[str, tuple[int, str]] = {}
        for (name, spec), shape in zip(self.network.inputs.items(), shapes, strict=True):
            if reason := spec.mismatch(tuple(shape), spec.dtype):
                raise ShapeError(f"input {name!r}: {reason}")
            for symbol, extent in zip(spec.shape, shape, strict=True):
                if isinstance(symbol, str) and extents.setdefault(symbol, (extent, name))[0] != extent:
                    known, other = extents[symbol]
                    raise ShapeError(
                        f"input {name!r}: got {symbol} = {extent} in shape {tuple(shape)}, "
                        f"expected {symbol} = {known} as in input {other!r}"
                    )
        if len(self._fitting) >= _FITTING:
            self._fitting.clear()
        self._fitting.add(shapes)

    def _refuse_names(self, inputs: Arrays) -> None:
        wanted = [name for name, _ in self._inputs]
        if not isinstance(inputs, Mapping):
            raise ShapeError(f"got {type(inputs).__name__} as inputs; expected a dict of arrays: {', '.join(wanted)}")
        unknown = [name for name in inputs if name not in wanted]
        tail = suggestion(unknown[0], wanted) if unknown else ""
        raise ShapeError(f"got the inputs {', '.join(inputs) or 'none'}; expected: {', '.join(wanted)}{tail}")

    def _refuse_loss(self, loss: str) -> Any:
        raise UnknownName("loss", loss, self._outputs)

    def _targets(self, wrt: Sequence[str], feed: list[Any]) -> dict[str, Any]:
        targets = {}
        positions = {name: index for index, (name, _) in enumerate(self._inputs)}
        if not wrt:
            raise UsageError("nothing to differentiate by; allowed: None (all parameters), or names")
        for name in wrt:
            if name in self._parameters:
                targets[name] = self._parameters[name]
            elif name in positions and feed[positions[name]].is_floating_point():
                # A leaf of its own: the caller's tensor must not start to require a gradient.
                feed[positions[name]] = feed[positions[name]].detach().requires_grad_()
                targets[name] = feed[positions[name]]
            elif name in positions:
                raise Unsupported(
                    f"no gradient by {name!r}, which is {self.network.inputs[name]}; allowed: floating-point inputs"
                )
            else:
                raise UnknownName("parameter or input", name, [*self._parameters, *positions])
        return targets

    def _seed(self, root: Any, loss_scale: float) -> Any:
        key = (root.dtype, root.shape, loss_scale)
        if key not in self._seeds:
            # One seed for the scale in force: an automatic scale changes, and old ones must not pile up.
            self._seeds = {key: torch.full_like(root, loss_scale, requires_grad=False)}
        return self._seeds[key]


def _tensor(name: str, value: Any) -> Any:
    """A copy of what torch cannot share: memory that is read-only, not C-contiguous or of another byte order."""
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"input {name!r}: got {type(value).__name__} that torch cannot take ({error})") from error


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _address(tensor: Any) -> int | None:
    return int(tensor.data_ptr()) if tensor.is_contiguous() else None


@contextmanager
def _hooks(targets: Mapping[str, Any], on_gradient: Callable[[str, Array], None]) -> Iterator[None]:
    """Call back as soon as each gradient is complete; at the end, for those that the loss does not depend on."""
    waiting = dict(targets)

    def complete(name: str, leaf: Any) -> None:
        del waiting[name]
        on_gradient(name, leaf.grad)

    handles = [
        tensor.register_post_accumulate_grad_hook(lambda leaf, name=name: complete(name, leaf))
        for name, tensor in targets.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for name, tensor in waiting.items():
        gradient = tensor.grad
        on_gradient(name, torch.zeros_like(tensor, requires_grad=False) if gradient is None else gradient)
