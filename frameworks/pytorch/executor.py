"""`PyTorchExecutor`: a network on PyTorch, eager, gradients by torch's own automatic differentiation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from deep5.errors import ShapeError, Unsupported
from deep5.events import StepInfo
from deep5.backend import ParameterGroup, TrainStep
from deep5.frameworks.pytorch.emit import compile_forward
from deep5.networks.network import Network
from deep5.tensors import Array, Arrays, Device
from deep5.training.rule import UpdateRule
from deep5.training.step import KernelStep

__all__ = ["PyTorchExecutor"]


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
        self._forward, self.source = compile_forward(network, {**self._parameters, **self._buffers})
        self._inputs = [
            (name, getattr(torch, spec.dtype), torch.Size(extent for extent in spec.shape[1:] if isinstance(extent, int)))
            for name, spec in network.inputs.items()
        ]
        self._fixed = all(
            isinstance(extent, int) for spec in network.inputs.values() for extent in spec.shape[1:]
        ) and all(spec.shape and isinstance(spec.shape[0], str) for spec in network.inputs.values())
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
        if not accumulate:
            for tensor in (self._wrt or {}).values():
                tensor.grad = None
            for tensor in targets.values():
                tensor.grad = None
        elif self._wrt is not None:
            self._keep_input_gradients(targets)
        values = self._forward(*feed, True)
        outputs = dict(zip(self._outputs, values, strict=True))
        root = outputs.get(loss)
        if root is None or root.numel() != 1 or not root.requires_grad:
            raise Unsupported(
                f"the output {loss!r} cannot be differentiated; allowed: a scalar output that depends on a parameter, "
                f"of {', '.join(self._outputs)}"
            )
        seed = self._seed(root, loss_scale)
        chosen = None if wrt is None else tuple(targets.values())
        if on_gradient is None:
            torch.autograd.backward((root,), (seed,), inputs=chosen)
        else:
            with _hooks(targets, on_gradient):
                torch.autograd.backward((root,), (seed,), inputs=chosen)
        self._wrt = {**(self._wrt or {}), **targets} if accumulate else targets
        return {name: value.detach() for name, value in outputs.items()}

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`; see `GraphExecutor`."""
        if self._wrt is None:
            raise Unsupported("there are no gradients; remedy: call inference_and_backprop first")
        # A parameter that the loss does not depend on has the gradient zero, as mathematics has it.
        return {
            name: tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
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
        packed, offset = torch.from_numpy(np.asarray(out)), 0
        for tensor in self._named(names, packed):
            packed[offset : offset + tensor.numel()] = tensor.detach().reshape(-1)
            offset += tensor.numel()

    def write(self, names: Sequence[str], packed: Array) -> None:
        """Packed copy in; see `GraphExecutor`."""
        source, offset = torch.from_numpy(np.asarray(packed)), 0
        with torch.no_grad():
            for tensor in self._named(names, source):
                tensor.copy_(source[offset : offset + tensor.numel()].reshape(tensor.shape))
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
            raise ShapeError(f"missing or unknown values: {sorted(state.keys() ^ live.keys())}; allowed: {sorted(live)}")
        with torch.no_grad():
            for name, tensor in live.items():
                value = np.asarray(state[name])
                reason = {**self.network.parameters, **self.network.buffers}[name].mismatch(value.shape, str(value.dtype))
                if reason:
                    raise ShapeError(f"the value for {name!r} does not fit: {reason}")
                tensor.copy_(torch.from_numpy(value.copy()))

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
        dtypes = {spec.dtype for spec in self.network.parameters.values()}
        return {
            "framework": "pytorch",
            "version": torch.__version__,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "dtype": ", ".join(sorted(dtypes)),
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32) if self._place.type == "cuda" else False,
            "deterministic": torch.are_deterministic_algorithms_enabled() or self._place.type == "cpu",
        }

    def _live(self) -> dict[str, Any]:
        return {**self._parameters, **self._buffers}

    def _named(self, names: Sequence[str], packed: Any) -> list[Any]:
        live = self._live()
        unknown = [name for name in names if name not in live]
        if unknown:
            raise ShapeError(f"no parameter or buffer {unknown}; allowed: {', '.join(live)}")
        tensors = [live[name] for name in names]
        size = sum(tensor.numel() for tensor in tensors)
        if packed.shape != (size,) or any(packed.dtype != tensor.dtype for tensor in tensors):
            raise ShapeError(
                f"got packed memory {packed.dtype}{tuple(packed.shape)}, expected one dtype, {[t.dtype for t in tensors]}, "
                f"and the shape ({size},)"
            )
        return tensors

    def _feed(self, inputs: Arrays) -> list[Any]:
        if len(inputs) != len(self._inputs):
            self._refuse_names(inputs)
        feed = []
        for name, dtype, tail in self._inputs:
            try:
                value = inputs[name]
            except KeyError:
                self._refuse_names(inputs)
            if not isinstance(value, torch.Tensor):
                value = torch.from_numpy(np.require(value, requirements="W"))
            if value.dtype is not dtype or (self._fixed and value.shape[1:] != tail):
                self._refuse(name, value)
            elif not self._fixed and self._mismatch(name, value):
                self._refuse(name, value)
            feed.append(value if value.device == self._place else value.to(self._place))
        return feed

    def _mismatch(self, name: str, value: Any) -> str | None:
        return self.network.inputs[name].mismatch(tuple(value.shape), str(value.dtype).removeprefix("torch."))

    def _refuse(self, name: str, value: Any) -> None:
        raise ShapeError(f"input {name!r}: {self._mismatch(name, value) or 'does not fit'}")

    def _refuse_names(self, inputs: Arrays) -> None:
        wanted = [name for name, _, _ in self._inputs]
        raise ShapeError(f"got the inputs {sorted(inputs)}, expected {sorted(wanted)}")

    def _targets(self, wrt: Sequence[str], feed: list[Any]) -> dict[str, Any]:
        targets = {}
        positions = {name: index for index, (name, _, _) in enumerate(self._inputs)}
        for name in wrt:
            if name in self._parameters:
                targets[name] = self._parameters[name]
            elif name in positions and feed[positions[name]].is_floating_point():
                # A leaf of its own: the caller's tensor must not start to require a gradient.
                feed[positions[name]] = feed[positions[name]].detach().requires_grad_()
                targets[name] = feed[positions[name]]
            else:
                floats = [name for name, dtype, _ in self._inputs if dtype.is_floating_point]
                raise Unsupported(f"no gradient by {name!r}; allowed: {', '.join([*self._parameters, *floats])}")
        return targets

    def _keep_input_gradients(self, targets: dict[str, Any]) -> None:
        """With `accumulate`, a new input leaf goes on where the last call's leaf of that name stopped."""
        for name, tensor in targets.items():
            before = (self._wrt or {}).get(name)
            if before is not None and before is not tensor:
                tensor.grad = before.grad

    def _seed(self, root: Any, loss_scale: float) -> Any:
        key = (root.dtype, root.shape, loss_scale)
        if key not in self._seeds:
            # One seed for the scale in force: an automatic scale changes, and old ones must not pile up.
            self._seeds = {key: torch.full_like(root, loss_scale, requires_grad=False)}
        return self._seeds[key]


def _address(tensor: Any) -> int | None:
    return int(tensor.data_ptr()) if tensor.is_contiguous() else None


@contextmanager
def _hooks(targets: Mapping[str, Any], on_gradient: Callable[[str, Array], None]) -> Iterator[None]:
    """Call back as soon as each gradient is complete."""
    handles = [
        tensor.register_post_accumulate_grad_hook(lambda leaf, name=name: on_gradient(name, leaf.grad))
        for name, tensor in targets.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
