"""`TorchModel`: a user's `torch.nn.Module` with a loss, trained as it is or as the export of `torch.onnx`."""

from __future__ import annotations

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

import torch
from torch.nn import functional

from deep5.core.errors import MissingDependency, Unsupported, described
from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_files import is_own_file
from deep5.core.own_model import Exported, OwnModel
from deep5.core.plugins import install_command
from deep5.core.tensors import TensorSpec, dtype_name
from deep5.frameworks.pytorch.given_masks import exportable_dropout
from deep5.frameworks.pytorch.native import ModuleExecutor, from_module
from deep5.networks.arguments import as_network
from deep5.networks.kernels.drawing import OPERATORS

__all__ = ["TorchModel"]

# Exporters take a dimension of 0 or 1 for a constant.
_SAMPLES = 3
_DROPOUT = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)


def cross_entropy(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return functional.cross_entropy(output, label.long())


def mse(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return functional.mse_loss(output, _like(output, label))


def binary_cross_entropy(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return functional.binary_cross_entropy_with_logits(output, _like(output, label))


_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "binary_cross_entropy": binary_cross_entropy,
}


def _like(output: Any, label: Any) -> Any:
    """The label as numbers of the output's type and shape, which must be the same except for a last dimension of 1."""
    if label.shape != output.shape and tuple(output.shape) != (*label.shape, 1):
        raise ValueError(f"an output of shape {tuple(output.shape)} for labels of shape {tuple(label.shape)}")
    return label.to(output.dtype).reshape(output.shape)


class TorchModel(OwnModel):
    """A `torch.nn.Module`; made by `Framework.own_model`.

    Args:
        module: The module.
        loss: A key of `LOSSES`, or a function `loss(output, label)`.
        inputs: Specifications of the inputs, the label last.
        device: Where the module runs; it is moved there.
    """

    kind = "torch.nn.Module"

    def __init__(
        self, module: Any, loss: str | Callable[..., Any], inputs: Mapping[str, TensorSpec], device: str
    ) -> None:
        self.name, self._loss, self._inputs = type(module).__name__, loss, dict(inputs)
        self._module, self._device = module.to(device), device
        self.class_axis = 1 if loss == "cross_entropy" else None

    def executor(self, seed: int) -> GraphExecutor:
        """The module as it is; see `OwnModel.executor`."""
        return from_module(self._module, self._function, inputs=self._specs(self._module), seed=seed)

    @property
    def _function(self) -> Callable[..., Any]:
        return _LOSSES[self._loss] if isinstance(self._loss, str) else self._loss

    def _specs(self, module: Any) -> dict[str, TensorSpec]:
        """The inputs, with floating-point ones in the module's type."""
        floats = (tensor.dtype for tensor in module.parameters() if tensor.dtype.is_floating_point)
        own = next((dtype_name(dtype) for dtype in floats), "float32")
        return {
            name: TensorSpec(shape=spec.shape, dtype=own if spec.dtype.startswith("float") else spec.dtype)
            for name, spec in self._inputs.items()
        }

    def exported(self) -> Exported:
        """Export by `torch.onnx.export(dynamo=True)` in training mode; unoptimized, parameters keep their names.

        Raises:
            MissingDependency: onnxscript is not installed.
            Unsupported: The module cannot be exported, or the export has other parameters.
        """
        try:
            metadata.version("onnxscript")
        except metadata.PackageNotFoundError as error:
            raise MissingDependency(
                "exporting a PyTorch module needs the package 'onnxscript', which is not installed; remedy: "
                f"{install_command('onnxscript')}, or run the module as it is on pytorch"
            ) from error
        proto = self._exported(training=True)
        drawn = _drawn(proto)
        if drawn and drawn != _drawn(self._exported(training=False)):
            raise Unsupported(
                f"{self.name} draws random numbers in training only ({drawn[0]}), and its export would also draw them "
                "in evaluation; allowed: dropout; remedy: torch.nn.Dropout or torch.nn.functional.dropout, or run it "
                "as it is on pytorch"
            )
        trained, frozen, changes = _compared(self._module, {value.name for value in proto.graph.initializer})
        return Exported(
            proto=proto,
            trained=trained,
            frozen=frozen,
            changes=(*changes, *_drop_copies(self._module)),
            exporter=f"torch.onnx {torch.__version__}",
        )

    def _exported(self, training: bool) -> Any:
        """The module in a mode as an `onnx.ModelProto`."""
        module = copy.deepcopy(self._module).to("cpu").train(training)
        specs = self._specs(module)
        *given, label = specs
        if not isinstance(self._loss, str):
            _add_loss(module, self._loss)
            given.append(label)
        outputs = ["logits"] if isinstance(self._loss, str) else ["logits", "loss"]
        symbols = {
            extent: torch.export.Dim(extent, min=1)
            for name in given
            for extent in specs[name].shape
            if isinstance(extent, str)
        }
        arguments = tuple(_example(specs[name]) for name in given)
        shapes: tuple[Any, ...] = tuple(
            {axis: symbols[extent] for axis, extent in enumerate(specs[name].shape) if isinstance(extent, str)}
            for name in given
        )
        if not isinstance(self._loss, str):
            shapes = (shapes,)  # of the arguments that the function with the loss takes as one tuple
        try:
            with _quiet(), exportable_dropout():
                return torch.onnx.export(
                    module,
                    arguments,
                    dynamo=True,
                    optimize=False,
                    verbose=False,
                    report=False,
                    dynamic_shapes=shapes,
                    input_names=given,
                    output_names=outputs,
                ).model_proto
        except Exception as error:
            raise Unsupported(_why_not(self.name, error)) from error

    def executor_of(self, network: NetworkSpec, seed: int) -> GraphExecutor:
        """A copy of the module, with the export's weights; see `OwnModel.executor_of`."""
        graph = as_network(network)
        dtype = next(iter(graph.parameter_specs.values())).dtype if graph.parameter_specs else "float32"
        module = copy.deepcopy(self._module).to(getattr(torch, dtype))
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name in (*graph.parameter_specs, *graph.buffer_specs):
                named[name].copy_(torch.from_numpy(graph.initial(name)))
        return ModuleExecutor(module, self._function, self._specs(module), ("logits", "loss"), seed, graph)

    def draw_as_export(self, executor: GraphExecutor) -> None:
        """See `OwnModel.draw_as_export`; each call of `torch.nn.functional.dropout` has a mask."""
        assert isinstance(executor, ModuleExecutor)  # noqa: S101 - made by executor_of
        executor.draw_as_graph()


def _compared(module: Any, stored: set[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What the export trains, what it freezes, and what it changed.

    Raises:
        Unsupported: Weights that the module shares are separate in the export, or a parameter has another name.
    """
    own = dict(module.named_parameters())
    every: dict[int, list[str]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        every.setdefault(id(tensor), []).append(name)
    changes = []
    for names in every.values():
        kept = [name for name in names if name in stored]
        if len(kept) > 1:
            raise Unsupported(
                f"the module shares one weight as {', '.join(names)}, and its export has {len(kept)} separate ones, "
                "which train differently; remedy: run the module on its own framework"
            )
        if len(names) > 1:
            changes.append(f"the shared weight {', '.join(names)} is stored once")
        if not kept:
            changes.append(f"the parameter {names[0]} is not used, or a part of another tensor, and is omitted")
    trained = tuple(name for names in every.values() for name in names if name in stored)
    if own and not trained:
        raise Unsupported("the export has none of the module's parameters; remedy: run it on its own framework")
    by_name = dict(module.named_parameters(remove_duplicate=False))
    frozen = tuple(name for name in trained if not by_name[name].requires_grad)
    norms = [name for name, part in module.named_modules() if _keeps_statistics(part)]
    if norms:
        changes.append(
            f"the running variance of {norms[0]}{f' and {len(norms) - 1} more' if len(norms) > 1 else ''} is that of "
            "the batch as a population (ONNX), not its unbiased estimate (PyTorch): evaluation differs slightly"
        )
    return trained, frozen, tuple(changes)


def _drop_copies(module: Any) -> tuple[str, ...]:
    """Of dropout that writes to its input, a sentence each."""
    found = [name for name, part in module.named_modules() if isinstance(part, _DROPOUT) and part.inplace]
    return tuple(f"the dropout {name} does not write to its input (inplace=False)" for name in found)


def _drawn(proto: Any) -> list[str]:
    """The operators that draw random numbers, without dropout."""
    return [node.op_type for node in proto.graph.node if node.op_type in OPERATORS]


def _keeps_statistics(part: Any) -> bool:
    kind = torch.nn.modules.batchnorm._BatchNorm
    return isinstance(part, kind) and part.track_running_stats


def _add_loss(module: Any, loss: Callable[..., Any]) -> None:
    """Let a module return its output and the loss of a label, its last argument; parameters keep their names."""
    kind = type(module)

    def forward(self: Any, *given: Any) -> tuple[Any, Any]:
        output = kind.forward(self, *given[:-1])
        return output, loss(output, given[-1])

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _example(spec: TensorSpec) -> Any:
    shape = [_SAMPLES if isinstance(extent, str) else extent for extent in spec.shape]
    return torch.zeros(shape, dtype=getattr(torch, spec.dtype))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on what it does."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch's loggers have separate levels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _without_graphs():
                yield
    finally:
        logging.disable(level)


@contextmanager
def _without_graphs() -> Iterator[None]:
    """Without the graphs that `torch.export` prints with an error; what the module or another thread prints is kept."""
    printing: dict[str, Any] = {}
    with suppress(ImportError):
        from torch.export import _trace

        printing = vars(_trace)
    printing["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        printing.pop("print", None)


def _why_not(name: str, error: BaseException) -> str:
    """Why a module cannot be exported: what, and the line of the user's code, if known."""
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    # The exporter wraps what happened.
    root = next((each for each in chain if not type(each).__module__.startswith("torch.onnx")), error)
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", described(root)).splitlines() if line.strip()]
    where = ""
    for each in reversed(chain):
        frames = [frame for frame in traceback.extract_tb(each.__traceback__) if is_own_file(frame.filename)]
        places = [(frame.filename, str(frame.lineno)) for frame in frames]
        # The exporter's messages contain the user's stack.
        places += [place for place in re.findall(r'File "([^"]+)", line (\d+)', str(each)) if is_own_file(place[0])]
        if places:
            where = f" at {places[-1][0]}:{places[-1][1]}"
            break
    return (
        f"{name} cannot be exported to ONNX{where}: {lines[0] if lines else type(root).__name__}; remedy: run it as it "
        "is on pytorch, or write what depends on values with torch.where or torch.cond"
    )
