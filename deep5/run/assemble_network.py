"""The network of a training recipe: a graph, or a model of a framework's library as it is or as its export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, MissingDependency, NetworkError, RecipeError, Unsupported, suggestion
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.own_model import OwnModel
from deep5.core.plugins import framework, owner_of
from deep5.core.tensors import TensorSpec
from deep5.recipe.part import Part, Parts, where_of

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["LABEL", "NetworkPart", "network_part", "with_loss"]

LABEL = "label"
"""The part of a sample with its label, for a loss by name and for models of libraries."""

_REMEDY = "remedy: loss='cross_entropy', 'mse' or 'binary_cross_entropy' in the recipe"


@dataclass(frozen=True, kw_only=True)
class NetworkPart:
    """The network under `model`.

    Attributes:
        graph: The network as a graph, without the recipe's initial weights and precision; None: native code.
        own: The model of a framework's library, if there is one.
        as_it_is: Whether the model itself runs: without a graph, or in place of one.
        document: The description for the result.
    """

    graph: Network | None
    own: OwnModel | None = None
    as_it_is: bool = False
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> Sequence[str]:
        """What the export changed, a sentence each; of a model that runs as it is, nothing."""
        found: Sequence[str] = () if self.as_it_is else self.document.get("changes", ())
        return found

    def executor(self, seed: int) -> GraphExecutor:
        """The executor of native code."""
        assert self.own is not None  # noqa: S101 - of those that have no graph
        return self.own.executor(seed)


def network_part(
    parts: Parts,
    made: Any,
    splits: Callable[[], Any],
    framework_of: Callable[[], Framework | None],
    *,
    device: Any,
    seed: int,
    as_graph: bool = False,
) -> NetworkPart | None:
    """What runs of an object that was created under `model`.

    Args:
        parts: The recipe's parts, by key.
        made: The object.
        splits: Returns the data set, which gives the inputs.
        framework_of: Returns the framework that the recipe names; None: the recipe's own function makes the executor.
        device: The device.
        seed: Seed of the initial weights of a model that holds none.
        as_graph: Whether a graph is required, as in comparisons.

    Returns:
        The network; None for native code that only the recipe's function under `executor` knows.

    Raises:
        RecipeError: There is no loss, or the object, the loss and the data set do not fit.
    """
    from deep5.networks.network import Network

    if isinstance(made, Network):
        graph = with_loss(parts, made, splits)
        return NetworkPart(graph=graph, document=_document(parts, str(made.model.graph.name), "ONNX", "a graph"))
    chosen = framework_of()
    if chosen is None:
        if parts["loss"].value is not None:
            raise RecipeError(
                f"{parts['loss'].where}'loss' is set, and the recipe's function under 'executor' takes the model with "
                "its loss; allowed: one of them; remedy: 'framework' in place of 'executor', or no 'loss'"
            )
        return None
    name = owner_of(made)
    if name is None:
        raise parts["model"].not_a(
            made,
            "a d5.Network, a model of PyTorch, Keras or Flax, a pair (init, apply) of JAX functions, or a function "
            "that returns one; otherwise set 'executor'",
        )
    loss, owner = parts["loss"].component(), framework(name)
    if loss is None:
        raise RecipeError(f"{parts['model'].where}the model {type(made).__name__} has no loss; {_REMEDY}")
    inputs = _inputs(parts["dataset"], splits())
    here = chosen.name.partition(":")[0] == owner.name
    try:
        own = owner.own_model(made, loss, inputs, device=device if here else "cpu", seed=seed)
        if here and not chosen.mode and not as_graph:
            document = _document(parts, own.name, own.kind, "as it is")
            return NetworkPart(graph=None, own=own, as_it_is=True, document=document)
        graph, document = _exported(parts, own, loss, inputs)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{_where(parts)}'model': {error}") from error
    return NetworkPart(graph=graph, own=own, as_it_is=here and not chosen.mode, document=document)


def with_loss(parts: Parts, network: Network, splits: Callable[[], Any]) -> Network:
    """A graph with the recipe's loss, if it names one, and with the names of the data set's parts.

    Raises:
        RecipeError: There is no loss, or two, or the network and the data set do not fit.
    """
    loss, where = parts["loss"].component(), parts["model"].where
    if loss is None:
        if "loss" not in network.outputs:
            raise RecipeError(
                f"{where}the network {network.model.graph.name!r} computes no loss: its outputs are "
                f"{', '.join(network.outputs)}; {_REMEDY}, or an output 'loss'"
            )
        return network
    if "loss" in network.outputs:
        raise RecipeError(
            f"{parts['loss'].where}'loss' is {parts['loss'].value!r}, and the network computes a loss itself; allowed: "
            "one of them; remedy: leave 'loss' out"
        )
    if not isinstance(loss, str):
        raise RecipeError(
            f"{parts['loss'].where}'loss' is a function, and the model is a graph of ONNX operators; allowed: "
            "'cross_entropy', 'mse', 'binary_cross_entropy'; remedy: one of them, or a graph with an output 'loss'"
        )
    inputs = _inputs(parts["dataset"], splits())
    try:
        named = _named(network, [name for name in inputs if name != LABEL])
        return named.add_loss("logits", loss, label_spec=inputs[LABEL])
    except NetworkError as error:
        raise RecipeError(f"{_where(parts)}'model': {error}") from error


def _where(parts: Parts) -> str:
    """Where a model is that does not fit its loss and its data."""
    return where_of(parts["model"], parts["loss"], parts["dataset"])


def _named(network: Network, parts: list[str]) -> Network:
    """A graph whose inputs have the names of a data set's parts, and whose scores are `logits`."""
    inputs, outputs = [name for name in network.inputs if name != LABEL], list(network.outputs)
    if "logits" not in outputs:
        if len(outputs) != 1:
            raise NetworkError(
                f"the outputs are {', '.join(outputs)}; allowed: one, or one named 'logits'; remedy: name the scores "
                "'logits' (Network.rename)"
            )
        network = network.rename(outputs[0], "logits")
    if set(inputs) <= set(parts):
        return network
    if len(inputs) == len(parts) == 1:
        return network.rename(inputs[0], parts[0])
    odd = next(name for name in inputs if name not in parts)
    raise NetworkError(
        f"the input {odd!r} is no part of the data set; allowed: {', '.join(parts)}{suggestion(odd, parts)}; remedy: "
        "name the network's inputs like the data set's parts (Network.rename)"
    )


def _exported(
    parts: Parts, own: OwnModel, loss: Any, inputs: Mapping[str, TensorSpec]
) -> tuple[Network, dict[str, Any]]:
    """The export of a model as a network, and its description."""
    from deep5.networks.network import Network

    found = own.exported()
    graph = Network.from_onnx(found.proto, parameters=list(found.trained))
    if found.frozen:
        graph = graph.freeze(*found.frozen)
    if "loss" not in graph.outputs:
        graph = graph.add_loss("logits", loss, label_spec=inputs[LABEL])
    document = _document(parts, own.name, own.kind, f"exported by {found.exporter}")
    return graph, {**document, "changes": list(found.changes)}


def _document(parts: Parts, name: str, kind: str, form: str) -> dict[str, Any]:
    loss = parts["loss"].value
    reported = loss if isinstance(loss, str) else getattr(loss, "__qualname__", None)
    return {"name": name, "kind": kind, "form": form, "loss": "the network's" if loss is None else str(reported)}


def _inputs(part: Part, splits: Any) -> dict[str, TensorSpec]:
    """The parts of the data set's samples with the batch dimension, the label last."""
    specs = splits.train.specs
    if LABEL not in specs or len(specs) < 2:
        raise RecipeError(
            f"{part.where}the samples of the data set have {', '.join(specs)}; allowed: inputs and a {LABEL!r}"
        )
    if any(spec.collection for spec in specs.values()):
        raise Unsupported("a data set of tensors only")
    ordered = [*(name for name in specs if name != LABEL), LABEL]
    return {name: TensorSpec(shape=("N", *specs[name].shape), dtype=specs[name].dtype) for name in ordered}
