"""The sizes of all values of a network at given dimensions of its inputs: inferred, or measured by one run."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from deep5.core import plugins
from deep5.core.errors import Deep5Error, MissingDependency, NetworkError, Unsupported
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.networks.analysis.extents import chosen_extents
from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.onnx.specs import spec_of_value
from deep5.networks.random_feed import random_feed

__all__ = ["concrete", "is_sized", "measured_specs", "value_specs"]

# Back-ends that know most operators, the first of which runs the network to measure it.
_MEASURING = ("reference", "onnxruntime")


def concrete(network: Network, extents: Mapping[str, int]) -> ir.Model:
    """A copy whose inputs have these dimensions, with all shapes inferred again.

    Raises:
        NetworkError: The nodes do not accept these dimensions.
    """
    model: ir.Model = network.model.clone()
    for value in model.graph.inputs:
        if value.name in network.inputs and value.shape is not None:
            value.shape = ir.Shape([extents.get(one, one) for one in network.inputs[str(value.name)].shape])  # type: ignore[arg-type]
    declared: dict[ir.Value, ir.Shape | None] = {}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            declared[value], value.shape = value.shape, None
    infer_shapes(model, f"the network with {', '.join(f'{name} = {extent}' for name, extent in extents.items())}")
    for value, shape in declared.items():  # those of operators that ONNX does not know
        value.shape = shape if value.shape is None else value.shape
    return model


def value_specs(model: ir.Model, measured: Mapping[str, TensorSpec] | None = None) -> dict[str, TensorSpec]:
    """The specification of every value; a size that only a run determines has a name instead of a number.

    Args:
        model: The model, with inferred shapes.
        measured: The values that a run has measured, by name.
    """
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in model.graph for value in node.outputs if value.name]
    found: dict[str, TensorSpec] = {}
    for value in values:
        name = str(value.name)
        if value.dtype is None and value.const_value is None:
            found[name] = TensorSpec(shape=(f"{name}:*",), dtype="unknown", ranked=False)
        else:
            found[name] = spec_of_value(value)
        if not is_sized(found[name]) and measured is not None:
            found[name] = measured.get(name, found[name])
    return found


def is_sized(spec: TensorSpec) -> bool:
    """Whether all sizes are known."""
    return not spec.collection and all(isinstance(extent, int) for extent in spec.shape)


def measured_specs(
    network: Network, batch: int | None, extents: Mapping[str, int], seed: int = 0
) -> dict[str, TensorSpec]:
    """The shapes of the values that cannot be inferred, from one run on random inputs.

    Args:
        network: The network.
        batch: As for `analyse`.
        extents: As for `analyse`; every symbolic dimension needs a value.
        seed: Seed of the inputs.

    Raises:
        NetworkError: A symbolic dimension without a value, or the run fails.
    """
    chosen = chosen_extents(network, batch, extents)
    known = value_specs(concrete(network, chosen))
    computed = [str(value.name) for node in network.model.graph for value in node.outputs if value.name]
    wanted = [name for name in computed if name in known and not is_sized(known[name]) and not known[name].collection]
    if not wanted:
        return {}
    reasons = []
    for name in _MEASURING:
        try:
            executor = plugins.framework(name).executor(network.with_outputs(wanted), device="cpu", seed=seed)
            results = executor.inference(random_feed(network, chosen, seed))
        except (Unsupported, MissingDependency) as error:
            reasons.append(str(error))
            continue
        except Deep5Error as error:
            raise NetworkError(
                f"the sizes cannot be measured by a run on random inputs: {error}; remedy: other sizes, or no --run"
            ) from error
        shapes = {value: tuple(map(int, to_numpy(result).shape)) for value, result in results.items()}
        return {value: TensorSpec(shape=shape, dtype=known[value].dtype) for value, shape in shapes.items()}
    raise NetworkError(f"the sizes cannot be measured by a run: {'; '.join(reasons)}; remedy: no --run")
