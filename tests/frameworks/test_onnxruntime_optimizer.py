"""Every optimization of ONNX Runtime compared with none, on patterns that it looks for, and nearly those.

A new version of ONNX Runtime examines itself here: what it fuses wrongly fails in `test_patterns`, and what it no
longer fuses wrongly fails in `test_wrong_optimizations_are_still_wrong`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.frameworks.onnxruntime.eight_bits import saturates
from deep5.frameworks.onnxruntime.fusions import NEEDED, left_out
from deep5.frameworks.onnxruntime.wrong_fusions import EMPTY, WRONG
from fusion_blocks import BLOCKS
from fusion_layers import LAYERS
from fusion_moves import MOVES
from fusion_rules import RULES
from fusion_sketch import Sketch
from optimized import apart, guarded_session, outcome, plain_session

PATTERNS = {**RULES, **LAYERS, **MOVES, **BLOCKS}
DAILY, LONG = 12, 400
QUANTUM = 0.5
"""The largest step of the quantized patterns: kernels of integers round ties otherwise than QuantizeLinear."""


def has_no_window(model: onnx.ModelProto) -> bool:
    """Whether a pool is larger than its padded image: deep5 refuses it where ONNX Runtime computes a window all the
    same, with a value that depends on its optimizations.
    """
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    sizes = {
        value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim][2:]
        for value in (*graph.value_info, *graph.input)
    }
    for node in graph.node:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type in ("AveragePool", "MaxPool") and given.get("auto_pad", b"VALID") in (b"NOTSET", b"VALID"):
            kernel = given["kernel_shape"]
            around = given.get("pads", [0] * (2 * len(kernel)))
            steps, strides = (given.get(name, [1] * len(kernel)) for name in ("dilations", "strides"))
            window = zip(kernel, steps, strides, around, around[len(kernel) :], strict=True)
            for size, (length, step, stride, begin, end) in zip(sizes.get(node.input[0], ()), window, strict=False):
                over = step * (length - 1) + 1 - (size + begin + end)
                if size > 0 and over > 0 and over % stride:
                    return True
    return False


def examine(pattern: str, seeds: Sequence[int]) -> tuple[int, list[str]]:
    """The number of models that run without optimizations, and what differs with those that deep5 leaves in."""
    run, found = 0, []
    for seed in seeds:
        sketch = Sketch([seed, *pattern.encode()])
        model = PATTERNS[pattern](sketch)
        if has_no_window(model):
            continue
        try:
            wanted = outcome(plain_session(model, optimized=False), sketch.feeds)
        except Exception:  # noqa: S112 - not every draw is a valid model; ONNX Runtime raises private classes
            continue
        run += 1
        try:
            got = outcome(guarded_session(model), sketch.feeds)
            difference = apart(wanted, got, quantum=QUANTUM if "quantized" in pattern else 0.0)
        except Exception as error:  # as above
            difference = f"{type(error).__name__}: {str(error)[:200]}"
        if difference is not None:
            found.append(f"seed {seed}: {difference}")
    return run, found


@pytest.mark.daily
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern: str) -> None:
    run, found = examine(pattern, range(DAILY))
    assert not found
    assert run >= DAILY // 3, "too few of the draws are valid models"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_at_length(pattern: str) -> None:
    assert not examine(pattern, range(DAILY, LONG))[1]


EXAMINED = {
    *("Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer", "ConstantFolding", "ConstantSharing"),
    *("CommonSubexpressionElimination", "MatMulAddFusion", "ReshapeFusion", "FreeDimensionOverrideTransformer"),
    *("SliceConcatToSpaceToDepthFusion", "GeluFusionL1", "GeluFusionL2", "LayerNormFusionL1", "LayerNormFusionL2"),
    *("QDQPropagationTransformer", "WeightBiasQuantization", "EnsureUniqueDQForNodeUnit", "WhereDummyDq"),
    *("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider", "DoubleQDQPairsRemover"),
    *("QDQS8ToU8Transformer", "QDQSelectorActionTransformer", "GemmActivationFusion", "MatMulIntegerToFloatFusion"),
    *("DynamicQuantizeMatMulFusion", "ConvActivationFusion", "SimplifiedLayerNormFusion", "AttentionFusion"),
    *("EmbedLayerNormFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion", "MatmulTransposeFusion"),
    *("BiasGeluFusion", "GroupQueryAttentionFusion", "SkipLayerNormFusion", "BiasSkipLayerNormFusion"),
    *("FastGeluFusion", "QuickGeluFusion", "BiasSoftmaxFusion", "BiasDropoutFusion", "MatMulScaleFusion"),
    *("MatMulActivationFusion", "MatMulNBitsFusion", "GroupQueryAttentionPreNormFusion", "NchwcTransformer"),
    *("QDQFinalCleanupTransformer", "NhwcTransformer", "ConvAddActivationFusion", "RemoveDuplicateCastTransformer"),
    *("CastFloat16Transformer", "FuseFp16InitializerToFp32NodeTransformer", "MemcpyTransformer"),
}
"""ONNX Runtime's optimizations."""

UNREACHED = {
    "AttentionFusion": "looks for Reshape before opset 19 or Add before opset 14; deep5 writes opset 20 or later",
    "BiasDropoutFusion": "for nodes on CUDA only",
    "BiasSoftmaxFusion": "for nodes on CUDA only",
    "FreeDimensionOverrideTransformer": "for sizes that the options of a session fix; deep5 sets none",
    "GeluFusionL2": "GeluFusionL1 finds the same before, from opset 20 on",
    "GroupQueryAttentionFusion": "for nodes on CUDA only",
    "GroupQueryAttentionPreNormFusion": "for nodes on WebGPU only",
    "LayerNormFusionL2": "LayerNormFusionL1 finds the same before, from opset 17 on",
    "MatMulActivationFusion": "for nodes on DirectML only",
    "MemcpyTransformer": "for nodes on several devices",
}
"""The optimizations that no model of deep5 reaches on the CPU, and why. They are not compared."""


class Wrong(NamedTuple):
    """A model that an optimization gets wrong."""

    names: tuple[str, ...]
    nodes: Sequence[onnx.NodeProto]
    x: np.ndarray
    weights: Mapping[str, Any]
    outputs: Sequence[str] = ("y",)
    declared: Sequence[int | str] | None = None
    opset: int = 20

    def model(self) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.x.dtype)
        graph = helper.make_graph(
            self.nodes,
            "wrong",
            [helper.make_tensor_value_info("x", kind, self.x.shape if self.declared is None else self.declared)],
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.weights.items()],
        )
        versions = {node.domain: 1 for node in self.nodes} | {"": self.opset}
        opsets = [helper.make_opsetid(*each) for each in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def f32(*shape: int, scale: float = 1.0) -> np.ndarray:
    return np.asarray(scale * np.random.default_rng(3).standard_normal(shape), np.float32)


def norm(*, first: bool = False, swapped: bool = False, **mean: int) -> list[onnx.NodeProto]:
    """A layer norm written out; `first`: its epsilon is the first term; `swapped`: its bias is."""
    node = helper.make_node
    terms = ["e", "v"] if first else ["v", "e"]
    return [
        node("ReduceMean", ["x", "axis"], ["m"], **mean),
        node("Sub", ["x", "m"], ["c"]),
        node("Pow", ["c", "two"], ["q"]),
        node("ReduceMean", ["q", "axis"], ["v"], **mean),
        node("Add", terms, ["ve"]),
        node("Sqrt", ["ve"], ["r"]),
        node("Div", ["c", "r"], ["n"]),
        node("Mul", ["n", "scale"], ["s"]),
        node("Add", ["bias", "s"] if swapped else ["s", "bias"], ["y"]),
    ]


def simple_norm(**mean: int) -> list[onnx.NodeProto]:
    """The same without a mean."""
    node = helper.make_node
    return [
        node("Pow", ["x", "two"], ["q"]),
        node("ReduceMean", ["q", "axis"], ["v"], **mean),
        node("Add", ["v", "e"], ["ve"]),
        node("Sqrt", ["ve"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "scale"], ["y"]),
    ]


def settings(width: int, kind: str = "float32", epsilon: float = 0.5) -> dict[str, Any]:
    """The constants of a norm."""
    draw = np.random.default_rng(4)
    return {
        "axis": np.array([-1]),
        "two": np.array(2, kind),
        "e": np.array(epsilon, kind),
        "scale": draw.standard_normal(width).astype(kind),
        "bias": draw.standard_normal(width).astype(kind),
    }


N = helper.make_node
LAYER_NORM = ("LayerNormFusionL1", "LayerNormFusionL2")
SIMPLE_NORM = ("SimplifiedLayerNormFusion",)
TRANSPOSES = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
INTEGERS = np.array([-7, 2, 5], np.int64)
IMAGE = -1 - np.abs(f32(1, 2, 4, 4))
CASES: dict[str, Wrong] = {
    "1 / x * y of integers": Wrong(
        ("DivMulFusion",), [N("Div", ["one", "x"], ["d"]), N("Mul", ["d", "x"], ["y"])], INTEGERS, {"one": np.int64(1)}
    ),
    "1 / x * y, the 1 of more axes": Wrong(
        ("DivMulFusion",),
        [N("Div", ["one", "x"], ["d"]), N("Mul", ["d", "x"], ["y"])],
        f32(3),
        {"one": np.ones((1, 1), np.float32)},
    ),
    "Relu before a Clip of float64": Wrong(
        ("FuseReluClip",),
        [N("Relu", ["x"], ["r"]), N("Clip", ["r", "low", "high"], ["y"])],
        f32(3).astype(np.float64),
        {"low": np.float64(-1), "high": np.float64(6)},
    ),
    "Pad before a MaxPool": Wrong(
        ("Pad_Fusion",),
        [
            N("Pad", ["x", "pads"], ["p"]),
            N("MaxPool", ["p"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0]),
        ],
        IMAGE,
        {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    ),
    "Pad of as many as the kernel has": Wrong(
        ("Pad_Fusion",),
        [
            N("Pad", ["x", "pads"], ["p"]),
            N("AveragePool", ["p"], ["y"], kernel_shape=[2, 2], count_include_pad=1, pads=[0, 0, 0, 0]),
        ],
        IMAGE,
        {"pads": np.array([0, 0, 2, 0, 0, 0, 0, 0])},
    ),
    "Transpose between MatMul and BatchNormalization": Wrong(
        ("MatMul_BatchNormalization_Fusion",),
        [
            N("MatMul", ["x", "w"], ["m"]),
            N("Transpose", ["m"], ["t"], perm=[1, 0]),
            N("BatchNormalization", ["t", "s", "b", "mean", "var"], ["y"]),
        ],
        f32(3, 3),
        {"w": f32(3, 3), "s": f32(3), "b": f32(3), "mean": f32(3), "var": np.arange(1, 4, dtype=np.float32)},
    ),
    "a transposed factor of Gemm that is an output": Wrong(
        ("GemmTransposeFusion",),
        [
            N("Transpose", ["x"], ["s"]),
            N("Neg", ["x"], ["n"]),
            N("Transpose", ["n"], ["t"]),
            N("Gemm", ["s", "t"], ["g"], transB=1),
            N("Neg", ["g"], ["y"]),
        ],
        f32(3, 4),
        {},
        ("y", "t"),
    ),
    "an infinite factor of MatMul": Wrong(
        ("MatMulScaleFusion",),
        [N("Mul", ["x", "s"], ["m"]), N("MatMul", ["m", "w"], ["y"])],
        np.array([[0, 1]], np.float32),
        {"s": np.float32(np.inf), "w": np.ones((2, 1), np.float32)},
    ),
    "Gather from the end": Wrong(
        ("GatherToSliceFusion",),
        [
            N("Shape", ["x"], ["sizes"]),
            N("Gather", ["sizes", "zero"], ["end"]),
            N("Range", ["first", "end", "one"], ["r"]),
            N("Gather", ["x", "r"], ["y"], axis=1),
        ],
        f32(2, 3),
        {"first": np.int64(-1), "zero": np.int64(0), "one": np.int64(1)},
        declared=["a", 3],
    ),
    "x · Sigmoid(a · x), `a` of more axes": Wrong(
        ("QuickGeluFusion",),
        [N("Mul", ["x", "a"], ["m"]), N("Sigmoid", ["m"], ["s"]), N("Mul", ["x", "s"], ["y"])],
        f32(),
        {"a": np.full(1, 1.5, np.float32)},
    ),
    "-0.0 + 0.0": Wrong(
        ("NoopElimination",),
        [N("Neg", ["x"], ["n"]), N("Add", ["n", "zero"], ["s"]), N("Reciprocal", ["s"], ["y"])],
        np.array([0.0], np.float32),
        {"zero": np.float32(0)},
    ),
    "-0.0 - -0.0": Wrong(
        ("NoopElimination",),
        [N("Neg", ["x"], ["n"]), N("Sub", ["n", "zero"], ["s"]), N("Reciprocal", ["s"], ["y"])],
        np.array([0.0], np.float32),
        {"zero": np.float32(-0.0)},
    ),
    "a Pad of one axis between transposes": Wrong(
        TRANSPOSES,
        [
            N("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
            N("Pad", ["t", "pads", "", "axes"], ["p"]),
            N("Transpose", ["p"], ["y"], perm=[1, 2, 0]),
        ],
        f32(1, 2, 3),
        {"pads": np.array([0, 1]), "axes": np.array([0])},
    ),
    "two roundings of different steps": Wrong(
        ("DoubleQDQPairsRemover",),
        [
            N("QuantizeLinear", ["x", "a", "z"], ["q"]),
            N("DequantizeLinear", ["q", "a", "z"], ["d"]),
            N("QuantizeLinear", ["d", "b", "z"], ["r"]),
            N("DequantizeLinear", ["r", "b", "z"], ["y"]),
        ],
        np.linspace(-1, 1, 9, dtype=np.float32),
        {"a": np.float32(0.3), "b": np.float32(0.05), "z": np.int8(0)},
    ),
    "signed numbers of opset 21": Wrong(
        ("QDQS8ToU8Transformer",),
        [
            N("QuantizeLinear", ["x", "a", "z"], ["q"]),
            N("DequantizeLinear", ["q", "a", "z"], ["d"]),
            N("Transpose", ["d"], ["t"]),
            N("QuantizeLinear", ["t", "a", "z"], ["r"]),
            N("DequantizeLinear", ["r", "a", "z"], ["u"]),
            N("Transpose", ["u"], ["y"]),
        ],
        f32(2, 3),
        {"a": np.float32(0.1), "z": np.int8(0)},
        opset=21,
    ),
    "the float bias of a quantized convolution": Wrong(
        ("WeightBiasQuantization",),
        [
            N("QuantizeLinear", ["x", "a", "z"], ["q"]),
            N("DequantizeLinear", ["q", "a", "z"], ["d"]),
            N("DequantizeLinear", ["w", "b", "s"], ["v"]),
            N("Conv", ["d", "v", "bias"], ["c"]),
            N("QuantizeLinear", ["c", "a", "z"], ["y"]),
        ],
        np.zeros((1, 1, 1, 1), np.float32),
        {
            "a": np.float32(0.5),
            "z": np.uint8(0),
            "b": np.float32(0.5),
            "s": np.int8(0),
            "w": np.ones((1, 1, 1, 1), np.int8),
            "bias": np.array([0.26], np.float32),
        },
    ),
    "an epsilon as first term": Wrong(LAYER_NORM, norm(first=True), f32(2, 3), settings(3)),
    "a norm of all axes": Wrong(LAYER_NORM, norm(swapped=True), f32(3), settings(3)),
    "a norm whose axis is dropped": Wrong((*LAYER_NORM, *SIMPLE_NORM), norm(keepdims=0), f32(3, 3), settings(3)),
    "a simple norm with an epsilon in float64": Wrong(
        SIMPLE_NORM, simple_norm(), f32(2, 3).astype(np.float64), settings(3, "float64")
    ),
    "a simple norm whose axis is dropped": Wrong(SIMPLE_NORM, simple_norm(keepdims=0), f32(3, 3), settings(3)),
    "a simple norm whose scale has more axes": Wrong(
        SIMPLE_NORM, simple_norm(), f32(2, 1), {**settings(1), "scale": f32(2)}
    ),
    "a norm of several axes after a sum": Wrong(
        ("SkipLayerNormFusion",),
        [N("Add", ["x", "x"], ["s"]), N("LayerNormalization", ["s", "scale"], ["y"], axis=1)],
        f32(2, 3, 4),
        {"scale": f32(4)},
    ),
    "sizes of an empty array, counted from the end": Wrong(
        ("ReshapeFusion",),
        [
            N("Relu", ["x"], ["z"]),
            N("Shape", ["z"], ["sizes"]),
            N("Gather", ["sizes", "first"], ["a"]),
            N("Unsqueeze", ["a", "zero"], ["rows"]),
            N("Gather", ["sizes", "last"], ["b"]),
            N("Unsqueeze", ["b", "zero"], ["columns"]),
            N("Concat", ["rows", "columns", "one"], ["target"], axis=0),
            N("Reshape", ["z", "target"], ["r"]),
            N("Neg", ["r"], ["y"]),
        ],
        f32(0, 3),
        {"first": np.int64(0), "last": np.int64(-1), "zero": np.array([0]), "one": np.array([1])},
        declared=["a", "b"],
    ),
    "embeddings whose sum is an output": Wrong(
        ("EmbedLayerNormFusion",),
        [
            N("Gather", ["words", "x"], ["a"]),
            N("Add", ["a", "places"], ["b"]),
            N("Gather", ["segments", "x"], ["c"]),
            N("Add", ["b", "c"], ["s"]),
            N("LayerNormalization", ["s", "scale", "bias"], ["n"]),
            N("Attention", ["n", "w", "v"], ["y"], domain="com.microsoft", num_heads=2),
        ],
        np.array([[0, 1, 2]]),
        {
            **dict.fromkeys(("words", "segments"), f32(3, 4)),
            "places": f32(1, 3, 4),
            **dict.fromkeys(("scale", "bias"), f32(4)),
            "w": f32(4, 12),
            "v": f32(12),
        },
        outputs=("y", "s"),
    ),
    "an infinite factor after a convolution": Wrong(
        ("ConvMulFusion",),
        [N("Conv", ["x", "w"], ["c"]), N("Mul", ["c", "s"], ["y"])],
        np.array([2, -1], np.float32).reshape(1, 2, 1, 1),
        {"w": np.ones((1, 2, 1, 1), np.float32), "s": np.full((1, 1, 1), np.inf, np.float32)},
    ),
    "a product of a vector without terms": Wrong(
        ("MatMulAddFusion",),
        [N("MatMul", ["x", "w"], ["m"]), N("Add", ["m", "b"], ["y"])],
        f32(0),
        {"w": f32(0, 1), "b": f32(1)},
    ),
    "a product without rows": Wrong(
        ("MatMulAddFusion",),
        [N("MatMul", ["x", "w"], ["m"]), N("Add", ["m", "b"], ["y"])],
        f32(2, 0, 3),
        {"w": f32(3, 2), "b": f32(2)},
    ),
}
if saturates():  # only there it is wrong
    CASES["a convolution of int8 weights on a processor without VNNI"] = Wrong(
        ("QDQSelectorActionTransformer",),
        [
            N("QuantizeLinear", ["x", "one", "z"], ["q"]),
            N("DequantizeLinear", ["q", "one", "z"], ["d"]),
            N("DequantizeLinear", ["w", "one", "p"], ["v"]),
            N("Conv", ["d", "v"], ["c"]),
            N("QuantizeLinear", ["c", "step", "z"], ["r"]),
            N("DequantizeLinear", ["r", "step", "z"], ["y"]),
        ],
        np.full((1, 8, 4, 4), 255, np.float32),
        {
            "w": np.full((2, 8, 3, 3), 127, np.int8), "one": np.float32(1), "step": np.float32(16384),
            "z": np.uint8(0), "p": np.int8(0),
        },
    )  # fmt: skip


def is_right(case: Wrong, disabled: Sequence[str]) -> bool:
    """Whether a session with optimizations computes what one without them does."""
    model, feeds = case.model(), {"x": case.x}
    wanted = outcome(plain_session(model, optimized=False), feeds)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(disabled),
            enable_fallback=False,
        )
        return apart(wanted, outcome(session, feeds)) is None
    except Exception:  # ONNX Runtime raises private classes
        return False


@pytest.mark.daily
@pytest.mark.parametrize("name", CASES)
def test_wrong_optimizations_are_left_out(name: str) -> None:
    case = CASES[name]
    model = case.model()
    wanted = outcome(plain_session(model, optimized=False), {"x": case.x})
    assert apart(wanted, outcome(guarded_session(model), {"x": case.x})) is None


@pytest.mark.daily
@pytest.mark.parametrize("name", CASES)
def test_wrong_optimizations_are_still_wrong(name: str) -> None:
    case = CASES[name]
    assert is_right(case, case.names), f"{case.names} are not what is wrong here"
    assert not is_right(case, ()), (
        f"onnxruntime {onnxruntime.__version__} is right here; remedy: remove the rule for {case.names} "
        "from wrong_fusions.py"
    )


def test_every_optimization_is_examined(capfd: pytest.CaptureFixture[str]) -> None:
    """The names are those of this version; one that is new has no pattern yet."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    model = Wrong((), [N("Relu", ["x"], ["y"])], f32(2), {}).model()
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = set(re.findall(r"GraphTransformer (\w+) modified", capfd.readouterr().err))
    assert not EXAMINED - found, f"this ONNX Runtime has no {sorted(EXAMINED - found)}; remedy: remove the names"
    assert not found - EXAMINED, f"remedy: add patterns for {sorted(found - EXAMINED)} and examine them"
    library = next(Path(onnxruntime.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so")).read_bytes()
    named = {name for rules in WRONG.values() for _, names in rules for name in names} | set(NEEDED)
    unknown = [name for name in sorted(named - found) if name.encode() not in library]
    assert not unknown, f"this ONNX Runtime has no {unknown}"


def triggered(model: onnx.ModelProto, capfd: pytest.CaptureFixture[str]) -> set[str]:
    """The optimizations that change a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    capfd.readouterr()
    with suppress(Exception):  # not every draw is a valid model; ONNX Runtime raises private classes
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return set(re.findall(r"GraphTransformer (\w+) modified: 1", capfd.readouterr().err))


@pytest.mark.slow
def test_every_optimization_is_triggered(capfd: pytest.CaptureFixture[str]) -> None:
    found = set[str]()
    for pattern, draw in PATTERNS.items():
        for seed in range(DAILY):
            found |= triggered(draw(Sketch([seed, *pattern.encode()])), capfd)
    assert not found & set(UNREACHED), f"remedy: add patterns for {sorted(found & set(UNREACHED))} and examine them"
    assert not EXAMINED - found - set(UNREACHED), f"no pattern triggers {sorted(EXAMINED - found - set(UNREACHED))}"


def test_every_rule_has_a_case() -> None:
    named = {name for rules in WRONG.values() for _, names in rules for name in names} | set(EMPTY)
    shown = {name for case in CASES.values() for name in case.names}
    elsewhere = set() if saturates() else {"QDQSelectorActionTransformer"}
    assert named - shown == {"BiasSkipLayerNormFusion", "ConstantFolding", "NchwcTransformer"} | elsewhere


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
def test_a_product_without_terms_is_zero(kind: str) -> None:
    wide = Wrong((), [N("MatMul", ["x", "w"], ["y"])], np.zeros((40, 0), kind), {"w": np.zeros((0, 50), kind)}).model()
    executor = d5.framework("onnxruntime").executor(d5.Network.from_onnx(wide))
    for _ in range(3):
        found = d5.to_numpy(executor.inference({"x": np.zeros((40, 0), kind)})["y"])
        np.testing.assert_array_equal(found, np.zeros((40, 50), kind))


def test_usual_layers_stay_fused() -> None:
    """What exporters write keeps the fusions that make it fast."""
    import onnx_ir as ir

    attention = [N("MatMul", ["x", "w"], ["m"]), N("Mul", ["m", "s"], ["t"]), N("Softmax", ["t"], ["y"])]
    written = [
        Wrong((), norm(), f32(2, 3), settings(3)),
        Wrong((), simple_norm(), f32(2, 3), settings(3)),
        Wrong((), attention, f32(2, 3), {"w": f32(3, 3), "s": np.float32(0.125)}),
    ]
    for case in written:
        model = onnx.shape_inference.infer_shapes(case.model())
        kept = {*LAYER_NORM, *SIMPLE_NORM} if "axis" in case.weights else {"MatMulScaleFusion"}
        if case is written[1]:
            kept = set(SIMPLE_NORM)
        assert not kept & set(left_out(ir.from_proto(model)))
