"""`TorchExecutor`: the common part for everything that torch runs and differentiates, a network or a module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir
import torch
from typing_extensions import override

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, Device
from deep5.frameworks.pytorch.host_step import HostStep
from deep5.frameworks.pytorch.numerics import deterministic, tf32
from deep5.frameworks.pytorch.placing import placed
from deep5.frameworks.pytorch.sequences import detached
from deep5.frameworks.pytorch.short import from_numpy, through_float32
from deep5.frameworks.pytorch.step import DeviceStep
from deep5.networks.diagnostics.failures import failed, is_own
from deep5.networks.labels import label_inputs
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.training.given import needs_shapes
from deep5.training.master_weights import SHORT_FLOATS
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import StepOptions
from deep5.training.training_executor import TrainingExecutor

__all__ = ["TorchExecutor"]


class TorchExecutor(TrainingExecutor):
    """Base of PyTorch's executors; implements `GraphExecutor`. Gradients by torch's automatic differentiation.

    The compiled rule updates parameters in host memory; torch's functions update those on other devices.

    Args:
        network: The network, or its description.
        parameters: Live parameters by name; leaves.
        buffers: Live buffers by name.
        device: Their device.
        seed: Only for noise.
    """

    capabilities = frozenset({"early_gradients", "float64"})
    collections = True

    def __init__(
        self,
        network: Network | NativeNetwork,
        parameters: dict[str, Any],
        buffers: dict[str, Any],
        *,
        device: Device,
        seed: int,
    ) -> None:
        super().__init__(network, device=device, seed=seed)
        self._place = torch.device(str(device))
        self._parameters, self._buffers = parameters, buffers
        # The same object if nothing is frozen: `targets is self._leaves` means that all are requested.
        self._leaves = {name: parameters[name] for name in network.trained_specs} if network.frozen else parameters
        self._outputs = tuple(network.outputs)
        self._seeds: dict[tuple[Any, ...], Any] = {}
        self._wrt: dict[str, Any] | None = None
        # Names of the gradients that callers hold, which must not change.
        self._given: Collection[str] = ()
        # The running statistics of a forward pass, and the object that applies them once the whole pass has succeeded.
        self._fresh: Sequence[Any] = ()
        self._settle: Callable[[Sequence[Any]], None] = lambda fresh: None
        self._spent = False

    @abstractmethod
    def _run(self, feed: list[Any], extents: Mapping[str, int], info: StepInfo | None, training: bool) -> Sequence[Any]:
        """The outputs in the network's order; updates of running statistics are left in `_fresh`."""

    def _dtype(self, name: str) -> Any:
        return getattr(torch, name)

    def _native(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # Operations that computed the caller's tensor are not part of this network.
            value = value.detach() if value.requires_grad else value
        elif isinstance(value, np.ndarray) and value.flags.carray:
            try:
                value = from_numpy(value)
            except (TypeError, ValueError):  # of another byte order, or not numeric
                value = _tensor(name, value)
        else:
            value = _tensor(name, value)
        return value if value.device == self._place else placed(value, self._place)

    def _live(self, name: str) -> Any:
        return self._parameters[name] if name in self._parameters else self._buffers[name]

    def _assign(self, name: str, value: np.ndarray) -> None:
        with torch.no_grad():
            self._live(name).copy_(from_numpy(value if value.flags.writeable else value.copy()))

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        self._recent = inputs, training, info
        if self._feeding is not None and self._feeding.is_fed(inputs):
            return self._feeding.inference(inputs, training, info)
        feed, extents = self._feed(inputs, empty=not training)
        with torch.no_grad():
            outputs = dict(zip(self._outputs, self._outcome(feed, extents, info, training), strict=True))
        if training and self._fresh:
            self._settle(self._fresh)
        return outputs

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
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        feed, extents = self._feed(inputs)
        if type(loss) is not str or loss not in self._losses:
            self._check_loss(loss)
        loss_scale = self._check_scale(loss, loss_scale)
        targets = self._leaves if wrt is None and self._leaves else self._targets(wrt, feed)
        if wrt is not None or on_gradient is not None:
            self._requested(targets)
        before = self._wrt if accumulate and not self._spent else None
        self._wrt, self._spent = None, False  # none, if the rest fails
        if before is None:
            for tensor in self._parameters.values():
                tensor.grad = None
            self._given = ()
        else:
            self._go_on(before, targets)
        self._differentiate(targets)
        outputs = dict(zip(self._outputs, self._outcome(feed, extents, info, True), strict=True))
        root, chosen = outputs[loss], None if wrt is None else tuple(targets.values())
        if on_gradient is None:
            try:
                self._backward(root, loss_scale, chosen)
            except _raised(self.network) as error:
                if is_own(error):
                    raise
                raise failed(error, "torch") from error
        else:
            with _hooks(targets, on_gradient):
                self._backward(root, loss_scale, chosen)
            self._given = {*self._given, *targets}
        if self._fresh:
            self._settle(self._fresh)
        self._wrt = targets if before is None else {**before, **targets}
        return {name: detached(value) for name, value in outputs.items()}

    def _go_on(self, before: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
        """Let the next backward pass add to earlier gradients, in place as in torch, unless a caller holds them."""
        for name, tensor in targets.items():
            if name in before and tensor is not before[name]:  # an input is a new leaf each time
                self._check_sum(name, before[name].shape, tensor.shape)
            gradient = before[name].grad if name in before else None
            tensor.grad = gradient.clone() if gradient is not None and name in self._given else gradient
        self._given = [name for name in self._given if name not in targets]

    def _outcome(
        self, feed: list[Any], extents: Mapping[str, int], info: StepInfo | None, training: bool
    ) -> Sequence[Any]:
        """The result of `_run`; torch's exceptions are converted to deep5's."""
        try:
            return self._run(feed, extents, info, training)
        except _raised(self.network) as error:
            if is_own(error):
                raise
            for labels in label_inputs(self.network) if isinstance(self.network, Network) else ():
                labels.check(feed[labels.position].cpu().numpy())
            raise failed(error, "torch") from error

    @override
    def gradients(self) -> Arrays:
        if self._wrt is None:
            self._refuse_gradients()
        self._given = self._wrt
        # A parameter that the loss does not depend on has a zero gradient, as in mathematics.
        return {
            name: tensor.grad if tensor.grad is not None else torch.zeros_like(tensor, requires_grad=False)
            for name, tensor in self._wrt.items()
        }

    def _write(self, name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            super()._write(name, value)
            return
        with torch.no_grad():
            self._live(name).copy_(value)

    def _addends(self) -> Arrays:
        return {} if self._wrt is None or self._spent else self.gradients()

    def _set_gradients(self, values: Mapping[str, Any] | None) -> None:
        self._wrt, self._spent, self._given = None, False, tuple(values or ())
        if values is None:
            return
        self._wrt = {}
        for name, gradient in values.items():
            leaf = self._parameters.get(name)
            self._wrt[name] = torch.empty_like(gradient).requires_grad_() if leaf is None else leaf
            self._wrt[name].grad = gradient

    @override
    def parameters(self) -> Arrays:
        return {name: tensor.detach() for name, tensor in self._parameters.items()}

    def leaves(self) -> dict[str, Any]:
        """The trained parameters for torch's optimizers: leaves with `.grad`."""
        return self._leaves

    @override
    def buffers(self) -> Arrays:
        return dict(self._buffers)

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> HostStep | DeviceStep:
        if self._place.type != "cpu" or self._updates_short(options["pipeline"]) or needs_shapes(rule):
            return DeviceStep(self, rule, loss=loss, **options)
        return HostStep(
            self,
            rule,
            loss=loss,
            **options,
            threads=torch.get_num_threads(),
            locate=self._locate,
            spend=self.spend,
        )

    def _updates_short(self, pipeline: GradientPipeline | None) -> bool:
        """Whether a step updates parameters in a short type, which only torch's functions do."""
        short = any(spec.dtype in SHORT_FLOATS for spec in self.network.trained_specs.values())
        return short and pipeline is not None and pipeline.master_weights is False

    def spend(self) -> None:
        """Mark the gradients as consumed by a whole training step: they stay readable, but nothing is added to them."""
        self._spent = True

    def synchronize(self) -> None:
        """Wait for the device; does nothing on the host."""
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)

    @override
    def settings(self) -> dict[str, Any]:
        live = list(self._parameters.values())
        return {
            "framework": "pytorch",
            "version": torch.__version__,
            "device": str(live[0].device if live else self.device),
            "threads": torch.get_num_threads(),
            **self._dtype_settings(live),
            "tf32": self._place.type == "cuda" and tf32(),
            "deterministic": self._place.type == "cpu" or deterministic(),
        }

    def _product_kernels(self, dtype: str) -> str:
        return "float32" if through_float32(ir.DataType[dtype.upper()], self._place) else dtype

    def _locate(self, names: Sequence[str]) -> list[int] | None:
        """Addresses of the gradients of the last call; None if one is not contiguous or missing."""
        places = []
        for name in names:
            gradient = None if self._wrt is None else self._wrt[name].grad
            if gradient is None or not gradient.is_contiguous():
                return None
            places.append(gradient.data_ptr())
        return places

    def _requested(self, targets: Mapping[str, Any]) -> None:
        """A hook: receives the leaves that are requested by name or gradient by gradient, before anything runs."""

    def _differentiate(self, targets: Mapping[str, Any]) -> None:
        """A hook: receives the leaves to differentiate by, before a forward pass."""

    def _targets(self, wrt: Sequence[str] | None, feed: list[Any]) -> dict[str, Any]:
        targets = {}
        positions = {name: index for index, (name, _) in enumerate(self._inputs)}
        for name in self._check_wrt(wrt):
            if name not in self._parameters:
                # A separate leaf: the caller's tensor must not start to require a gradient.
                feed[positions[name]] = feed[positions[name]].detach().requires_grad_()
            targets[name] = self._parameters[name] if name in self._parameters else feed[positions[name]]
        return targets

    def _backward(self, root: Any, loss_scale: float, chosen: tuple[Any, ...] | None) -> None:
        # A loss that depends on none of the requested tensors has zero gradients.
        if root.requires_grad:
            torch.autograd.backward((root,), (self._seed(root, loss_scale),), inputs=chosen)

    def _seed(self, root: Any, loss_scale: float) -> Any:
        key = (root.dtype, root.shape, loss_scale)
        if key not in self._seeds:
            # Keep one seed for the current scale: an automatic scale changes, and old seeds must not accumulate.
            self._seeds = {key: torch.full_like(root, loss_scale, requires_grad=False)}
        return self._seeds[key]


def _raised(network: Network | NativeNetwork) -> tuple[type[Exception], ...]:
    """Exceptions of a pass with inconsistent values: anything for a graph, torch's own for a module."""
    return (Exception,) if isinstance(network, Network) else (IndexError, RuntimeError)


def _tensor(name: str, value: Any) -> Any:
    """A tensor; copies memory that torch cannot share: read-only, not C-contiguous or of another byte order."""
    try:
        array = np.asarray(value)
        return from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"input {name!r}: got {type(value).__name__} that torch cannot take ({error})") from error


@contextmanager
def _hooks(targets: Mapping[str, Any], on_gradient: Callable[[str, Array], None]) -> Iterator[None]:
    """Call back as soon as each gradient is complete, and at the end for those that the loss does not depend on."""
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
