"""Which tensors of an ONNX file are trained: the patterns that exporters write, as initial values and as Constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.networks.onnx.parameters import Decision

FORMS = ("initializer", "Constant")
Arrays = dict[str, Any]


def model(
    body: str,
    tensors: Arrays,
    *,
    form: str = "initializer",
    inputs: str = "float[N,4] x",
    names: dict[str, str] | None = None,
    producer: str = "",
    outputs: str = "float y",
) -> onnx.ModelProto:
    """A model in ONNX's text syntax with tensors, of which those in `names` get these names."""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g ({inputs}) => ({outputs}) {{ {body} }}')
    made.producer_name = producer
    named = names or {}
    for node in made.graph.node:
        node.input[:] = [named.get(name, name) for name in node.input]
    for number, (name, array) in enumerate(tensors.items()):
        given = np.asarray(array, np.float32) if isinstance(array, (float, list)) else np.asarray(array)
        tensor = numpy_helper.from_array(given, named.get(name, name))
        if form == "initializer":
            made.graph.initializer.append(tensor)
        else:
            made.graph.node.insert(number, helper.make_node("Constant", [], [named.get(name, name)], value=tensor))
    return made


def decisions(network: d5.Network) -> dict[str, Decision]:
    found = {decision.name: decision for decision in network.decisions}
    assert len(found) == len(network.decisions), "each tensor has one decision"
    return found


def decided(made: onnx.ModelProto, name: str) -> Decision:
    network = d5.Network.from_onnx(made)
    decision = decisions(network)[name]
    assert (name in network.parameter_specs) == (decision.outcome == "trained")
    assert decision.guessed == (decision.rule in (4, 5))
    return decision


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


END = "y = ReduceMean <keepdims = 0> (z)"
IMAGE = "float[N,3,8,8] x"


# -- the patterns, as initial values and as Constant nodes -------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["head.bias", "onnx::Add_12", "const_fold_opt__7", "val_3", "17"])
def test_the_bias_of_a_segmentation_head_is_trained(form: str, name: str) -> None:
    body = f"h = Conv (x, w) z = Add (h, b) {END}"
    made = model(body, {"w": normal(1, 3, 1, 1), "b": [[[[0.5]]]]}, form=form, inputs=IMAGE, names={"b": name})
    assert decided(made, name).outcome == "trained"
    assert decided(made, name).guessed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "added",
    ["h = MatMul (x, w) z = Add (h, b)", "h = MatMul (x, w) z = Add (b, h)",
     "h = Gemm (x, w) t = Squeeze (h) z = Add (t, b)", "h = MatMul (x, w) c = Unsqueeze (b, axes) z = Add (h, c)"],
)  # fmt: skip
def test_the_bias_of_a_dense_layer_with_one_output_is_trained(form: str, added: str) -> None:
    tensors = {"w": normal(4, 1), "b": [0.5], "axes": np.array([0])}
    decision = decided(model(f"{added} {END}", tensors, form=form, names={"b": "onnx::Add_3"}), "onnx::Add_3")
    assert (decision.outcome, decision.rule) == ("trained", 5)
    assert decided(model(f"z = Gemm (x, w, b) {END}", tensors, form=form), "b").rule == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("number", "name"),
    [(-1e9, "c"), (np.sqrt(2), "onnx::Div_4"), (np.sqrt(2), "/act/Constant_output_0"), (-1e9, "fill.value"),
     (0.5, "half"), (8.0, "stride"), (8.0, "val_8"), (0.001, "const_fold_opt__33"), (1e-6, "bn.eps"),
     (2.0, "model/tf.math.multiply/Mul/y:0"), (3.0, "p2o.Constant.3"), (3.0, "12"), (np.inf, "alpha")],
)  # fmt: skip
def test_single_numbers_are_constants(form: str, number: float, name: str) -> None:
    for body in (f"z = Mul (x, c) {END}", f"h = MatMul (x, x2) z = Add (h, c) {END}"):
        made = model(body, {"c": float(number)}, form=form, inputs="float[4,4] x, float[4,4] x2", names={"c": name})
        assert decided(made, name).outcome == "constant"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [1e-5, [3.0]])
def test_a_shift_of_all_channels_is_a_constant(form: str, number: Any) -> None:
    """The 3 of a hard sigmoid written out, directly after a layer."""
    made = model(f"h = MatMul (x, w) z = Add (h, c) {END}", {"w": normal(4, 3), "c": number}, form=form)
    assert decided(made, "c").outcome == "constant"
    convolved = f"h = Conv (x, w) a = Add (h, c) z = Clip (a, zero, six) {END}"
    tensors = {"w": normal(2, 3, 1, 1), "c": number, "zero": 0.0, "six": 6.0}
    assert decided(model(convolved, tensors, form=form, inputs=IMAGE), "c").outcome == "constant"


@pytest.mark.parametrize("form", FORMS)
def test_the_epsilon_of_a_batch_normalization_written_out_is_a_constant(form: str) -> None:
    tensors = {"mean": normal(4), "var": normal(4) ** 2, "eps": 0.001, "gamma": normal(4), "beta": normal(4)}
    body = (
        f"d = Sub (x, mean) v = Add (var, eps) s = Sqrt (v) n = Div (d, s) g = Mul (n, gamma) z = Add (g, beta) {END}"
    )
    names = {"mean": "bn.running_mean", "var": "bn.moving_variance", "gamma": "bn.weight", "eps": "eps"}
    network = d5.Network.from_onnx(model(body, tensors, form=form, names=names))
    assert set(network.parameter_specs) == {"bn.weight", "beta"}
    assert {name for name, decision in decisions(network).items() if decision.guessed} == {
        "bn.running_mean", "bn.moving_variance", "bn.weight", "eps", "beta",
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_start_and_step_of_a_range_are_settings(form: str) -> None:
    """The file `m4_range_trained`: one step of training moved both, and the network returned NaN."""
    body = f"""f = Conv <pads = [1, 1, 1, 1]> (x, w) s = Shape (f) n = Gather (s, three) nf = Cast <to = 1> (n)
    g = Range (zero, nf, one) z = Sub (f, g) {END}"""
    tensors = {"w": normal(4, 3, 3, 3), "three": np.array(3), "zero": 0.0, "one": 1.0}
    network = d5.Network.from_onnx(model(body, tensors, form=form, inputs="float[N,3,8,K] x"))
    assert set(network.parameter_specs) == {"w"}
    assert (decisions(network)["zero"].rule, decisions(network)["one"].reason) == (3, "step of Range")
    executor = d5.framework("reference").executor(network)
    step, feed = executor.train_step(d5.Adam(0.01), loss="y"), {"x": normal(2, 3, 8, 8)}
    losses = [float(step(feed, d5.StepInfo(step=number, batch_size=2))["y"]) for number in range(3)]
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("form", FORMS)
def test_an_epsilon_and_a_half_are_not_trained(form: str) -> None:
    """The file `m8_eps_trained`: 1e-6 became 0.02."""
    body = f"""h = MatMul (x, w) q = Mul (h, h) v = ReduceMean <keepdims = 1> (q, axes) ve = Add (v, eps)
    sd = Sqrt (ve) n1 = Div (h, sd) z = Mul (n1, half) {END}"""
    tensors = {"w": normal(4, 6), "axes": np.array([1]), "eps": 1e-6, "half": 0.5}
    assert set(d5.Network.from_onnx(model(body, tensors, form=form)).parameter_specs) == {"w"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("body", "number", "reason"),
    [
        ("z = Clip (x, c)", 1e-10, "lower bound of Clip"),
        ("z = Clip (x, , c)", np.inf, "upper bound of Clip"),
        ("z = Max (x, c)", 1e-10, "one element"),
        ("z = Pow (x, c)", 2.0, "exponent of Pow"),
        ("m = Less (x, c) z = Where (m, x, x)", 0.5, "operand of Less"),
        ("m = Less (x, x) z = Where (m, c, x)", 0.5, "operand of Where"),
        ("m = Less (x, x) d = Unsqueeze (c, axes) z = Where (m, d, x)", 0.5, "operand of Where"),
        ("z, m = Dropout (x, c)", 0.5, "ratio of Dropout"),
        ("z = Pad (x, pads, c)", 0.5, "padding value of Pad"),
        ("i = Mul (x, c) j = Cast <to = 7> (i) z = Gather (x, j)", 0.5, "only reaches settings"),
    ],
)
def test_settings_are_not_trained(form: str, body: str, number: float, reason: str) -> None:
    """Whatever their names: a setting of several elements is none either."""
    tensors = {"c": float(number), "axes": np.array([0]), "pads": np.array([0, 0, 1, 1])}
    decision = decided(model(f"{body} {END}", tensors, form=form), "c")
    assert decision.outcome == "constant"
    assert decision.reason.startswith(reason)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("body", ["z = Pow (x, c)", "m = Less (x, c) z = Where (m, x, x)",
                                  "m = Less (x, x) z = Where (m, x, c)"])  # fmt: skip
def test_settings_of_several_elements_are_not_trained(form: str, body: str) -> None:
    assert decided(model(f"{body} {END}", {"c": normal(4)}, form=form, names={"c": "a.weight"}), "a.weight").rule == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 5])
def test_quantization_scales_are_not_trained(form: str, size: int) -> None:
    scale, zero = np.full(size, 0.1, np.float32), np.zeros(size, np.int8)
    codes = np.arange(20, dtype=np.int8).reshape(4, 5)
    if size == 1:
        scale, zero = scale[0], zero[0]
    tensors = {"w": codes, "s": scale, "o": zero}
    bodies = {
        "d = DequantizeLinear <axis = 1> (w, s, o) z = MatMul (x, d)": 3,
        "f = Cast <to = 1> (w) d = Mul (f, s) z = MatMul (x, d)": 4 if size > 1 else 5,
        "f = Cast <to = 1> (w) g = Cast <to = 1> (o) e = Sub (f, g) d = Mul (e, s) z = MatMul (x, d)": None,
    }
    for body, rule in bodies.items():
        decision = decided(model(f"{body} {END}", tensors, form=form, names={"s": "layer.s"}), "layer.s")
        assert decision.outcome == "constant"
        assert rule in (None, decision.rule)


@pytest.mark.parametrize("name", ["x_scale", "conv.weight_scale", "h_quantized_scale", "blocks.0.act_quant.scale"])
def test_a_name_of_a_quantization_scale_decides(name: str) -> None:
    for values in ([0.1, 0.2, 0.3, 0.4], 0.1):
        made = model(f"z = Mul (x, s) {END}", {"s": values}, names={"s": name}, producer="pytorch")
        assert decided(made, name).reason.endswith("named as a quantization scale")
    paired = {"s": normal(4), "z_p": np.zeros(4, np.int8)}
    body = f"e = Cast <to = 1> (z_p) m = Mul (x, s) z = Add (m, e) {END}"
    made = model(body, paired, names={"s": "h_scale", "z_p": "h_zero_point"})
    assert decided(made, "h_scale").outcome == "constant"
    assert decided(model(f"z = Mul (x, s) {END}", {"s": normal(4)}, names={"s": "norm.scale"}), "norm.scale").rule == 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        ("z = LayerNormalization (x, w)", {"w": [1.0]}),
        ("z = PRelu (x, w)", {"w": [0.25]}),
        ("u = Unsqueeze (w, axes) z = PRelu (x, u)", {"w": 0.25, "axes": np.array([0])}),
        ("u = Identity (w) z = MatMul (x, u)", {"w": [[2.0]]}),
    ],
)
def test_weights_of_one_element_are_trained_by_their_slot(form: str, body: str, tensors: Arrays) -> None:
    made = model(f"{body} {END}", tensors, form=form, inputs="float[N,1] x", names={"w": "onnx::PRelu_3"})
    decision = decided(made, "onnx::PRelu_3")
    assert (decision.outcome, decision.rule) == ("trained", 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "producer"),
    [
        ("logit_scale", ""), ("alpha", ""), ("layers.0.alpha", ""), ("resweight", "pytorch"), ("blocks.3.re_zero", ""),
        ("amount", "pytorch"), ("linear_0.w_0", "PaddlePaddle"), ("layer_norm_1.b_0", ""),
        ("StatefulPartitionedCall/m/scaled/mul/ReadVariableOp:0", "tf2onnx"), ("dense/bias/read:0", "tf2onnx"),
    ],
)  # fmt: skip
def test_names_of_parameters_decide_about_one_element(form: str, name: str, producer: str) -> None:
    made = model(f"z = Mul (x, s) {END}", {"s": 2.6592}, form=form, names={"s": name}, producer=producer)
    decision = decided(made, name)
    assert (decision.outcome, decision.rule) == ("trained", 5)


SIGNATURE = """
p_a: PARAMETER target='s'
p_b: PARAMETER target='other'
b_c: BUFFER target='table'
c_d: CONSTANT_TENSOR target='lifted_tensor_0'
x: USER_INPUT
"""


@pytest.mark.parametrize("form", FORMS)
def test_torchs_signature_precedes_slots_names_and_numbers(form: str) -> None:
    tensors = {"s": 3.0, "table": normal(4), "made": 0.5, "joined": [0.0, -1e9, 0.0, 0.0], "beta": 2.0, "val_3": [1.0]}
    body = f"""a = Pow (x, s) b = Mul (a, table) c = Mul (b, made) d = Add (c, joined) e = Mul (d, beta)
    u = Expand (val_3, four) f = LayerNormalization (e, u) z = Div (f, s) {END}"""
    made = model(body, {**tensors, "four": np.array([4])}, form=form, producer="pytorch")
    made.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNATURE)
    for name, sources in (("made", "['val_1']"), ("joined", "['other', 'val_1']")):
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, np.shape(tensors[name]))
        info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=sources)
        made.graph.value_info.append(info)
    network = d5.Network.from_onnx(made)
    assert set(network.parameter_specs) == {"s", "joined"}, "an exponent is trained where the signature lists it"
    assert {name: decision.rule for name, decision in decisions(network).items()} == {
        "s": 2, "table": 2, "made": 2, "joined": 2, "beta": 5, "val_3": 2,
    }  # fmt: skip


def mask(low: float, size: int = 5) -> np.ndarray:
    return np.triu(np.full((1, 1, size, size), low, np.float32), 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.where(np.eye(5) > 0, 0, -100).astype(np.float32), id="swin"),
        pytest.param(mask(-1e9), id="gpt"),
        pytest.param(mask(-1e4), id="gpt2"),
        pytest.param(np.nan_to_num(mask(-np.inf), nan=0), id="infinity"),
        pytest.param(mask(float(np.finfo(np.float32).min)) + np.float32(-1), id="lowest, and other numbers"),
        pytest.param(mask(-65504.0).astype(np.float16), id="float16"),
        pytest.param(mask(-3.3895313892515355e38) - np.float32(0.5), id="lowest of another type"),
        pytest.param(np.tril(np.ones((1, 1, 5, 5), np.float32)), id="triangle"),
    ],
)
def test_masks_are_constants(form: str, array: np.ndarray) -> None:
    kind = "float16" if array.dtype == np.float16 else "float"
    with np.errstate(over="ignore"):
        made = model(f"z = Add (x, m) {END}", {"m": array}, form=form, inputs=f"{kind}[N,2,5,5] x",
                     outputs=f"{kind} y", names={"m": "block.attn_mask"})  # fmt: skip
    decision = decided(made, "block.attn_mask")
    assert (decision.outcome, decision.rule) == ("constant", 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "body",
    [
        "k = Sub (one, ones) m = Mul (k, low) z = Add (x, m)",
        "t = Trilu <upper = 0> (ones) k = Sub (one, t) m = Mul (k, low) z = Add (x, m)",
        "t = Trilu <upper = 0> (ones) e = Equal (t, zero) z = Where (e, low, x)",
        "k = Mul (x, ones2) l = Sub (one, ones2) m = Mul (l, low) z = Add (k, m)",
    ],
)
def test_what_makes_a_mask_is_a_constant(form: str, body: str) -> None:
    """Also where deep5 folds the mask; `ones2` has no triangle's shape."""
    triangle = np.tril(np.ones((5, 5), np.float32))
    tensors = {"ones": np.ones((5, 5), np.float32), "ones2": triangle[:, [0, 4, 1, 2, 3]], "one": 1.0, "zero": 0.0,
               "low": -1e9}  # fmt: skip
    network = d5.Network.from_onnx(model(f"{body} {END}", tensors, form=form, inputs="float[N,5,5] x"))
    assert not network.parameter_specs


@pytest.mark.parametrize("form", FORMS)
def test_tables_of_positions_without_a_signature_are_trained_on_a_guess(form: str) -> None:
    angles = np.arange(6)[:, None] / 10 ** np.arange(4)[None]
    tensors = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    inputs = "float[N,6,4] x"
    rotary = model(f"a = Mul (x, cos) b = Mul (x, sin) z = Add (a, b) {END}", tensors, form=form, inputs=inputs)
    tensors |= {"from": np.array([0]), "to": np.array([6])}
    added = model(f"s = Slice (sin, from, to) z = Add (x, s) {END}", tensors, form=form, inputs=inputs)
    for made, name in ((rotary, "cos"), (rotary, "sin"), (added, "sin")):
        decision = decided(made, name)
        assert (decision.outcome, decision.rule, decision.guessed) == ("trained", 4, True)


# -- chains, bodies, several uses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "chain",
    ["t = Identity (w)", "t = Transpose (w)", "t = Reshape (w, shape)", "u = Cast <to = 1> (w) t = Transpose (u)",
     "q = QuantizeLinear (w, s) d = DequantizeLinear (q, s) t = Transpose (d)", "t = Concat <axis = 0> (w, w)"],
)  # fmt: skip
def test_a_weight_behind_operators_that_pass_it_on_is_trained_by_its_slot(form: str, chain: str) -> None:
    tensors = {"w": normal(4, 4), "shape": np.array([4, -1]), "s": 0.1}
    inputs = "float[N,8] x" if "Concat" in chain else "float[N,4] x"
    network = d5.Network.from_onnx(model(f"{chain} z = MatMul (x, t) {END}", tensors, form=form, inputs=inputs))
    assert set(network.parameter_specs) == {"w"}
    assert decisions(network)["w"].reason == "matrix of MatMul"


@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_is_repeated_is_no_weight(form: str) -> None:
    """PyTorch expands a zero to the bias of a convolution that has none."""
    tensors = {"w": normal(2, 3, 1, 1), "zero": 0.0, "two": np.array([2])}
    made = model(f"b = Expand (zero, two) z = Conv (x, w, b) {END}", tensors, form=form, inputs=IMAGE)
    assert set(d5.Network.from_onnx(made).parameter_specs) == {"w"}


@pytest.mark.parametrize("form", FORMS)
def test_statistics_are_buffers_also_behind_an_identity(form: str) -> None:
    body = f"m = Identity (mean) z = BatchNormalization (x, s, b, m, v) {END}"
    tensors = {"s": normal(4), "b": normal(4), "mean": normal(4), "v": normal(4) ** 2}
    network = d5.Network.from_onnx(model(body, tensors, form=form))
    assert set(network.parameter_specs) == {"s", "b"}
    assert len(network.buffer_specs) == 2
    assert {decision.outcome for decision in network.decisions if decision.name in ("mean", "v")} == {"statistic"}


@pytest.mark.parametrize("form", FORMS)
def test_uses_that_disagree_get_values_of_their_own(form: str) -> None:
    """Exporters store equal values once: a weight, a statistic, a bound and a constant in one tensor."""
    body = f"""h = BatchNormalization (x, t, t, t, v) c = Clip (h, l, l) a = MatMul (c, m) b = Add (a, l)
    d = Mul (b, l) z = PRelu (d, l) {END}"""
    tensors = {"t": normal(4), "v": normal(4) ** 2, "l": [1.0], "m": normal(4, 1)}
    made = model(body.replace("Clip (h, l, l)", "Pow (h, l)"), tensors, form=form)
    network = d5.Network.from_onnx(made)
    assert set(network.parameter_specs) == {"t", "l", "m"}
    assert len(network.buffer_specs) == 2
    assert {decision.outcome for decision in network.decisions if decision.name == "t"} == {"trained", "statistic"}
    both = {decision.outcome: decision.operators for decision in network.decisions if decision.name == "l"}
    assert both == {"trained": ("Add", "PRelu"), "constant": ("Pow", "Mul")}
    feed = {"x": normal(3, 4)}
    found = d5.framework("reference").executor(network).inference(feed)["y"]
    evaluated = onnx.reference.ReferenceEvaluator(made).run(None, feed)[0]
    np.testing.assert_allclose(d5.to_numpy(found), evaluated, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_guess_gives_way_to_a_setting(form: str) -> None:
    """The exponent p of a generalized mean, of which 1 / p is taken too: half a parameter would be none."""
    body = f"a = Pow (x, p) m = ReduceMean <keepdims = 0> (a) r = Reciprocal (p) z = Pow (m, r) {END}"
    made = model(body, {"p": [3.0]}, form=form, names={"p": "gem.p"}, producer="pytorch")
    assert not d5.Network.from_onnx(made).parameter_specs
    assert set(d5.Network.from_onnx(made, parameters={"gem.p": True}).parameter_specs) == {"gem.p"}
    rounded = f"q = Div (x, s) r = Round (q) z = Mul (r, s) {END}"  # quantization with a size for each channel
    assert not d5.Network.from_onnx(model(rounded, {"s": normal(4)}, form=form)).parameter_specs


def body_model(kind: str, place: str, form: str) -> onnx.ModelProto:
    """A network whose weight `w` and number `c` are used in a body, and stored outside or inside of it."""
    inner = onnx.parser.parse_graph("b (float[N,4] h) => (float[N,4] k) { m = MatMul (h, w) k = Mul (m, c) }")
    tensors = [numpy_helper.from_array(normal(4, 4), "w"), numpy_helper.from_array(np.float32(0.5), "c")]
    if kind == "If":
        del inner.input[:]
        inner.node[0].input[0] = "x"
        inner.output[0].name = inner.node[1].output[0] = "k1"
        other = onnx.parser.parse_graph("o () => (float[N,4] k2) { k2 = Identity (x) }")
        nodes = [helper.make_node("If", ["flag"], ["q"], then_branch=inner, else_branch=other)]
    else:
        inner.input.insert(0, helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []))
        inner.input.insert(1, helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, []))
        inner.output.insert(0, helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []))
        inner.node.append(helper.make_node("Equal", ["i", "i"], ["on"]))
        nodes = [helper.make_node("Loop", ["n", "flag", "x"], ["q"], body=inner)]
    nodes.append(helper.make_node("ReduceMean", ["q"], ["y"], keepdims=0))
    info = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("n", onnx.TensorProto.INT64, [])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", info, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])])
    stored = (
        graph
        if place == "outside"
        else next(each.g for each in graph.node[0].attribute if each.name in ("then_branch", "body"))
    )
    if form == "initializer":
        stored.initializer.extend(tensors)
    else:
        for tensor in reversed(tensors):
            stored.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["outside", "inside"])
@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_the_rules_are_the_same_in_bodies(kind: str, place: str, form: str) -> None:
    made = body_model(kind, place, form)
    onnx.checker.check_model(made)
    network = d5.Network.from_onnx(made)
    assert set(network.parameter_specs) == {"w"}
    executor = d5.framework("reference").executor(network)
    feed = {"x": normal(2, 4), "flag": np.array(True), "n": np.array(2)}
    outputs = executor.inference_and_backprop(feed, loss="y", wrt=["w"])
    evaluated = onnx.reference.ReferenceEvaluator(made).run(None, feed)[0]
    np.testing.assert_allclose(d5.to_numpy(outputs["y"]), evaluated, rtol=1e-5)
    assert np.abs(d5.to_numpy(executor.gradients()["w"])).max() > 0


def test_weights_of_two_branches_with_one_name_stay_apart() -> None:
    made = body_model("If", "inside", "initializer")
    for attribute in made.graph.node[0].attribute:
        if attribute.name == "else_branch":
            attribute.g.CopyFrom(
                onnx.parser.parse_graph("o () => (float[N,4] k2) { m2 = MatMul (x, w) k2 = Mul (m2, c) }")
            )
            attribute.g.initializer.append(numpy_helper.from_array(2 * normal(4, 4), "w"))
            attribute.g.initializer.append(numpy_helper.from_array(np.float32(3), "c"))
    network = d5.Network.from_onnx(made)
    assert set(network.parameter_specs) == {"w", "w/parameter"}
    executor = d5.framework("reference").executor(network)
    for flag in (True, False):
        feed = {"x": normal(2, 4), "flag": np.array(flag), "n": np.array(2)}
        evaluated = onnx.reference.ReferenceEvaluator(made).run(None, feed)[0]
        np.testing.assert_allclose(d5.to_numpy(executor.inference(feed)["y"]), evaluated, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_initial_state_of_a_loop_is_a_setting(form: str) -> None:
    made = body_model("Loop", "outside", form)
    made.graph.node[-2].input[2] = "start"
    made.graph.node.insert(0, helper.make_node("Identity", ["x"], ["unused"]))
    tensor = numpy_helper.from_array(np.ones((1, 4), np.float32), "start")
    made.graph.initializer.append(tensor)
    network = d5.Network.from_onnx(made)
    assert set(network.parameter_specs) == {"w"}
    assert decisions(network)["start"].reason == "initial state of Loop"


# -- the caller's word -------------------------------------------------------------------------------------------------

FOUR = {"w": normal(4, 1), "b": [0.5], "c": 2.0, "t": normal(4)}
BODY = f"s = Mul (x, t) h = MatMul (s, w) a = Add (h, b) d = Mul (a, c) z = Clip (d, low) {END}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("given", "trained"),
    [
        (None, {"w", "b", "t"}),
        ({"c": True}, {"w", "b", "c", "t"}),
        ({"t": False, "c": True}, {"w", "b", "c"}),
        ({"w": False}, {"b", "t"}),
        (["w", "c"], {"w", "c"}),
        (("w",), {"w"}),
        ([], set()),
        ({"[bt]": False}, {"w"}),
        ({"*": False, "t": True}, {"t"}),
        ({"low": True}, {"w", "b", "t", "low"}),
        (["?"], {"w", "b", "c", "t"}),
    ],
)
def test_the_caller_decides_first(form: str, given: Any, trained: set[str], tmp_path: Path) -> None:
    made = model(BODY, {**FOUR, "low": -9.0}, form=form)
    network = d5.Network.from_onnx(made, parameters=given)
    assert set(network.parameter_specs) == trained
    feed = {"x": normal(3, 4)}
    evaluated = onnx.reference.ReferenceEvaluator(made).run(None, feed)[0]
    found = d5.framework("reference").executor(network).inference(feed)["y"]
    np.testing.assert_allclose(d5.to_numpy(found), evaluated, rtol=1e-5)
    network.save(tmp_path / "saved.onnx")
    again = d5.Network.from_onnx(tmp_path / "saved.onnx")
    assert (again.parameter_specs, again.structure_hash()) == (network.parameter_specs, network.structure_hash())
    onnx.save(made, tmp_path / "original.onnx")
    assert network.with_weights(tmp_path / "original.onnx").weights_hash() == network.weights_hash()
    assert network.with_weights(tmp_path / "saved.onnx").weights_hash() == network.weights_hash()


def test_a_bound_that_the_caller_trains_has_a_gradient() -> None:
    """The learned bound of PACT (Choi et al., 2018) is read by Clip as a live value."""
    made = model(f"z = Clip (x, low) {END}", {"low": 0.5})
    executor = d5.framework("reference").executor(d5.Network.from_onnx(made, parameters=["low"]))
    executor.inference_and_backprop({"x": np.zeros((3, 4), np.float32)}, loss="y")
    assert float(d5.to_numpy(executor.gradients()["low"])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"d": True}, r"'d' matches no tensor; allowed: .*: w, b, c, t.*remedy: deep5 show network FILE lists them"),
        ({"cc": True}, r"'cc' matches no tensor; .*did you mean 'c'"),
        ({"z*": True}, r"'z\*' matches no tensor"),
        ({"axes": True}, r"'axes' is of type int64; allowed: floating-point initial values"),
        (["w", "nothing"], r"'nothing' matches no tensor"),
        (
            {"ratio": True},
            r"'ratio' cannot be trained: it is the ratio of Dropout; allowed: .*; remedy: leave",
        ),
        ({"edge": True}, r"'edge' cannot be trained: it only reaches settings; allowed: tensors that a gradient"),
        ("w", r"got the string 'w'; allowed: a dict .*, or a list .*; remedy: \['w'\]"),
        ({"w": 1}, r"got 'w': 1; allowed: a dict such as"),
        ({1: True}, r"got 1: True; allowed"),
        ([1], r"got 1; allowed"),
        (3, r"got 3; allowed"),
    ],
)
def test_wrong_names_are_refused(given: Any, message: str) -> None:
    last = "e, m = Dropout (d, ratio) l = Less (x, edge) k = Cast <to = 1> (l) f = Add (e, k) z = Unsqueeze (f, axes)"
    body = BODY.replace("z = Clip (d, low)", last)
    made = model(body, {**FOUR, "ratio": 0.5, "edge": 0.5, "axes": np.array([0])})
    with pytest.raises(NetworkError, match=message):
        d5.Network.from_onnx(made, parameters=given)


# -- files of deep5 ----------------------------------------------------------------------------------------------------


def test_a_file_of_deep5_states_its_parameters(tmp_path: Path) -> None:
    build = d5.NetworkBuilder("own")
    x = build.input("x", ("N", 4))
    y = build.op("Mul", x, build.parameter("half", (), d5.networks.ones))
    y = build.op("Add", build.op("MatMul", y, build.parameter("w", (4, 1))), build.scalar(1e-6))
    network = build.network({"y": y})
    network.save(tmp_path / "own.onnx")
    again = d5.Network.from_onnx(tmp_path / "own.onnx")
    assert set(again.parameter_specs) == set(network.parameter_specs) == {"half", "w"}
    assert again.structure_hash() == network.structure_hash()
    assert {decision.rule for decision in again.decisions} == {2}
    earlier = onnx.load(tmp_path / "own.onnx")  # a file of a version that wrote no list
    del earlier.metadata_props[:]
    assert set(d5.Network.from_onnx(earlier).parameter_specs) == {"half", "w"}


def test_a_damaged_list_of_parameters_is_refused() -> None:
    made = model(f"z = Mul (x, t) {END}", {"t": normal(4)})
    made.metadata_props.add(key="deep5.parameters", value='{"t": 1}')
    with pytest.raises(NetworkError, match=r"the model's deep5.parameters is .*; allowed: a list of names in JSON"):
        d5.Network.from_onnx(made)
