"""Rule 8, impossible values: no time is below the minimum for its arithmetic at the machine's measured peak.

A comparison does not state its amount of arithmetic. It is known for deep5's own recipes, if the fixed part has the
hash of the installed file: then the network or the problems are created here from the installed recipe only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.identity import own_recipe
from deep5.audit.numerics import parts_of
from deep5.audit.timed_samples import TimedSample
from deep5.core.errors import Deep5Error

__all__ = ["check_work"]

# A peak is measured for a tenth of a second, on a processor whose clock varies.
_ROOM = 2.0
# Winograd's convolution algorithm with tiles of four by four omits three of four multiplications.
_CONVOLUTION = 4.0
# A training step is a forward pass and at least the weight gradients.
_PASSES = {"training": 2, "inference": 1}


def check_work(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[TimedSample]) -> None:
    """Check the median time of every candidate and workload against its amount of arithmetic.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
        samples: All rows of samples.csv.
    """
    seen = [(row["peaks"] or {}).get("product_flop_s") for row in document["candidates"]]
    peak = max((float(value) for value in seen if value), default=None)
    if peak is None or parts_of(document).get("precision") not in (None, "float32", "float64"):
        ledger.skip("times compared with the arithmetic: no peak is stored for this precision")
        return
    try:
        flops, room = _flops(document)
    except Deep5Error as error:
        ledger.skip(f"times compared with the arithmetic: {str(error).splitlines()[0][:100]}")
        return
    times: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        if sample.phase == "steady":
            times.setdefault((sample.candidate, sample.workload), []).append(sample.seconds)
    varied = {row["label"] for row in document["candidates"] if row["settings"]}
    for (candidate, workload), own in times.items():
        count = flops.get(workload.partition(", ")[0])
        if count is None or candidate in varied:
            ledger.skip("times compared with the arithmetic: the number of operations is not known")
            continue
        least = count / (peak * room)
        ledger.hold(
            8,
            median(own) >= least,
            f"{candidate}, {workload}: {median(own):.3g} s per call; its {count:.3g} operations take at least "
            f"{least:.3g} s at the measured peak of {peak:.3g} per second",
        )


def _flops(document: Mapping[str, Any]) -> tuple[dict[str, float], float]:
    """The minimum number of operations of a call by workload, and the permitted ratio of a rate to the peak.

    Raises:
        UsageError: They are unknown.
    """
    from deep5.core.errors import UsageError

    reported = document["recipe"]
    recipe = own_recipe(str(reported["name"]), str(reported["size"]), str(reported["hash"]))
    if document["kind"] == "operators":
        from deep5.bench.plan import workloads
        from deep5.bench.recipe import plan_of
        from deep5.recipe.experiment import recipe_parts

        works, _ = workloads(replace(plan_of(recipe_parts(recipe)), take=None))
        return {
            work.problem.name: float(work.flops)
            for work in works
            if work.flops is not None and work.direction.name == "forward"
        }, _ROOM * _CONVOLUTION
    model, size = recipe.fixed.get("model"), parts_of(document).get("batch_size")
    if not isinstance(model, str) or not isinstance(size, int) or "model_args" in recipe.fixed:
        raise UsageError("the network is not named in the fixed part")
    if document["kind"] == "inference":
        size = min([size, *(row["batch_size"] or size for row in document["results"])])
    forward = _forward(model, recipe.fixed.get("model_kwargs", {}), size)
    name = {"training": "training step", "inference": "inference"}[document["kind"]]
    return {name: _PASSES[document["kind"]] * forward}, _ROOM * _CONVOLUTION


def _forward(model: str, options: Mapping[str, Any], size: int) -> float:
    """Operations of the convolutions and products of one forward pass of one of deep5's own networks."""
    import onnx_ir as ir

    from deep5.core.errors import UsageError
    from deep5.core.plugins import load
    from deep5.core.tensors import TensorSpec
    from deep5.networks.onnx.shapes import infer_shapes
    from deep5.operators.work import flops

    graph = load("networks", model)(**options).model.clone()
    for value in graph.graph.inputs:
        value.shape = ir.Shape([extent if isinstance(extent, int) else size for extent in value.shape])
    for node in graph.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    infer_shapes(graph, "the network")

    def spec(value: Any) -> TensorSpec:
        shape = value.const_value.shape if value.shape is None and value.const_value is not None else value.shape
        extents = tuple(shape.numpy()) if shape is not None and shape.is_static() else None
        if extents is None:
            raise UsageError("the shapes of the network are not known")
        return TensorSpec(shape=tuple(map(int, extents)))

    total = 0.0
    for node in graph.graph:
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.domain in ("", "ai.onnx"):
            given = {name: attribute.value for name, attribute in node.attributes.items()}
            found = flops(node.op_type, [spec(v) for v in node.inputs[:2]], [spec(v) for v in node.outputs], given)
            total += found or 0
    return total
