"""The networks that ship: the published ones, in either dtype and with either loss, and their errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.networks import (
    Network,
    alexnet,
    densenet121,
    googlenet,
    gpt,
    inception,
    lenet,
    lstm,
    lstm_language_model,
    mlp,
    mobilenet_v2,
    resnet,
    resnet18,
    resnet18_small,
    resnet34,
    resnet50,
    squeezenet,
    transformer,
    vgg,
    vit,
    wide_resnet,
)

SMALL: dict[str, tuple[Callable[..., Network], dict[str, Any]]] = {
    "alexnet": (alexnet, {"width": 4, "image": 63}),
    "densenet121": (densenet121, {"growth": 4, "image": 32, "blocks": (2, 2)}),
    "googlenet": (googlenet, {"width": 4, "image": 65}),
    "googlenet_alone": (googlenet, {"width": 4, "image": 32, "auxiliary": False, "dropout": 0.0}),
    "inception": (inception, {"width": 8, "image": 16}),
    "lenet": (lenet, {}),
    "lstm": (lstm, {"features": 3, "hidden": 4, "length": 5}),
    "mlp": (mlp, {"features": 5, "hidden": 4, "dropout": 0.2}),
    "mobilenet_v2": (mobilenet_v2, {"multiplier": 0.1, "image": 64}),
    "resnet": (resnet, {"depth": 8}),
    "resnet18": (resnet18, {"width": 4, "image": 32}),
    "resnet18_small": (resnet18_small, {"width": 4, "image": 16}),
    "resnet34": (resnet34, {"width": 4, "image": 64}),
    "resnet50": (resnet50, {"width": 2, "image": 32, "blocks": (1, 2, 1, 1)}),
    "squeezenet": (squeezenet, {"width": 12, "image": 35}),
    "transformer": (
        transformer,
        {"vocabulary": 11, "length": 6, "width": 8, "heads": 2, "layers": 1, "dropout": 0.1, "causal": True},
    ),
    "transformer_sliced": (
        transformer,
        {"vocabulary": 11, "length": 6, "width": 8, "heads": 2, "layers": 1, "positions": 9, "gelu": "erf"},
    ),
    "vgg": (vgg, {"depth": 11, "width": 4, "image": 32}),
    "vit": (vit, {"image": 8, "patch": 4, "width": 8, "heads": 2, "layers": 1, "dropout": 0.1}),
    "wide_resnet": (wide_resnet, {"depth": 10, "widen": 2, "width": 4, "image": 8, "dropout": 0.1}),
}
LANGUAGE: dict[str, tuple[Callable[..., Network], dict[str, Any]]] = {
    "gpt": (gpt, {"vocabulary": 11, "length": 6, "width": 8, "heads": 2, "layers": 2}),
    "gpt_sliced": (gpt, {"vocabulary": 11, "length": 6, "width": 8, "heads": 2, "layers": 1, "positions": 9}),
    "lstm_language_model": (lstm_language_model, {"vocabulary": 11, "length": 5, "width": 4, "layers": 2}),
}
LOSSES = ("cross_entropy", "mse")


class LRN(OpRun):
    """By the definition: onnx 1.23's own normalizes only as many channels as there are samples."""

    op_domain = ""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        total = np.zeros_like(x)
        for channel in range(x.shape[1]):
            seen = slice(max(0, channel - (size - 1) // 2), channel + size // 2 + 1)
            total[:, channel] = np.square(x[:, seen]).sum(axis=1)
        return (x / (bias + alpha / size * total) ** beta,)


def count(network: Network) -> int:
    return sum(spec.size for spec in network.parameter_specs.values())


def batch(network: Network, size: int = 3) -> dict[str, np.ndarray]:
    """Tokens and classes below three, or normal numbers, depending on the inputs' dtypes."""
    draw = np.random.default_rng(0)
    feed: dict[str, np.ndarray] = {}
    for name, spec in network.inputs.items():
        shape = [size if isinstance(extent, str) else extent for extent in spec.shape]
        feed[name] = draw.integers(0, 3, shape) if spec.dtype == "int64" else draw.standard_normal(shape)
        feed[name] = feed[name].astype(spec.dtype)
    return feed


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SMALL)
def test_two_runtimes_agree(name: str, loss: str) -> None:
    """ONNX Runtime in float32 and ONNX's reference in float64, from the same initial weights."""
    make, sizes = SMALL[name]
    results = {}
    for dtype in ("float32", "float64"):
        network = make(**sizes, classes=3, loss=loss, dtype=dtype, seed=1)
        proto = network.to_onnx()
        onnx.checker.check_model(proto, full_check=True)
        assert list(network.inputs) == ["input", "label"]
        assert {key: spec.shape for key, spec in network.outputs.items()} == {"logits": ("N", 3), "loss": ()}
        assert {spec.dtype for spec in network.parameter_specs.values()} == {dtype}
        session: Any = (
            onnxruntime.InferenceSession(proto.SerializeToString())
            if dtype == "float32"
            else ReferenceEvaluator(proto, new_ops=[LRN])
        )
        results[dtype] = session.run(["logits", "loss"], batch(network))
    for single, double in zip(results["float32"], results["float64"], strict=True):
        # Up to a hundred float32 operations in a row on numbers of size one, with the errors of each magnified by the
        # batch normalizations of random weights.
        np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "googlenet"])  # which has three losses
def test_the_loss_is_the_mean(name: str) -> None:
    make, sizes = SMALL[name]
    for loss in LOSSES:
        network = make(**sizes, classes=3, loss=loss)
        feed = batch(network, size=2)
        session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
        logits, value = session.run(["logits", "loss"], feed)
        logits = logits.astype(np.float64)
        if loss == "cross_entropy":
            log_prob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            expected = -log_prob[np.arange(2), feed["label"]].mean()
        else:
            expected = np.square(logits - feed["label"]).mean()
        # The loss of given logits: a handful of float32 operations.
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_every_batch_size_gives_the_same_rows(name: str) -> None:
    make, sizes = SMALL[name]
    network = make(**sizes, classes=3)
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    feed = batch(network, size=4)
    together = session.run(["logits"], feed)[0]
    alone = [session.run(["logits"], {key: value[i : i + 1] for key, value in feed.items()})[0][0] for i in range(4)]
    # Kernels may sum in another order for one row: float32 rounding.
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_seeds(name: str) -> None:
    make, sizes = SMALL[name]
    first, again, other = make(**sizes), make(**sizes), make(**sizes, seed=1)
    assert first.weights_hash() == again.weights_hash() != other.weights_hash()
    assert first.structure_hash() == again.structure_hash() == other.structure_hash()


# Published figures


@pytest.mark.parametrize(("activation", "pooling"), [("tanh", "average"), ("relu", "max")])
def test_lenet_is_the_published_one(activation: str, pooling: str) -> None:
    network = lenet(activation=activation, pooling=pooling)
    assert count(network) == 61_706  # with every map of the second convolution connected
    assert network.inputs["input"].shape == ("N", 1, 28, 28)
    assert network.inputs["label"] == d5.TensorSpec(shape=("N",), dtype="int64")
    assert network.outputs["logits"].shape == ("N", 10)
    assert network.outputs["loss"].shape == ()
    kinds = {node.op_type for node in network.nodes}
    assert ({"Tanh", "AveragePool"} if activation == "tanh" else {"Relu", "MaxPool"}) <= kinds


def test_mlp_and_resnet_are_the_published_ones() -> None:
    assert count(mlp()) == 784 * 500 + 500 + 500 * 10 + 10
    # He et al. give 0.66 M for 44 layers (table 6); exact: convolutions, batch normalization, last layer.
    assert count(resnet()) == 658_586
    assert count(resnet(depth=8)) == 75_290
    network = resnet(depth=44)
    assert sum(node.op_type == "Conv" for node in network.nodes) + 1 == 44
    assert network.outputs["logits"].shape == ("N", 10)
    assert len(network.buffer_specs) == 2 * 43
    assert resnet(depth=8, classes=100).outputs["logits"].shape == ("N", 100)


def test_resnet18_small_is_the_published_one() -> None:
    network = resnet18_small()
    # Table 1's convolutions with a 3 x 3 first one and the projections; two parameters per normalized channel.
    convolutions = 64 * 3 * 9
    into = 64
    for out in (64, 128, 256, 512):
        convolutions += (out * into + 3 * out * out) * 9 + (out * into if out != into else 0)
        into = out
    normalised = 64 + sum(4 * out + (out if out != 64 else 0) for out in (64, 128, 256, 512))
    assert count(network) == convolutions + 2 * normalised + 512 * 10 + 10 == 11_173_962
    kinds = Counter(node.op_type for node in network.nodes)
    assert (kinds["Conv"], kinds["Add"]) == (17 + 3, 8)
    pooled = next(node.inputs[0] for node in network.nodes if node.op_type == "GlobalAveragePool")
    assert [int(extent) for extent in pooled.shape[1:]] == [512, 4, 4]


def test_resnet50_is_the_published_one() -> None:
    network = resnet50()
    # Of table 1: a first convolution of 7 x 7, bottlenecks of three, projections; two parameters per normalized
    # channel.
    assert count(network) == 25_557_032
    kinds = Counter(node.op_type for node in network.nodes)
    assert (kinds["Conv"], kinds["Add"], kinds["MaxPool"]) == (49 + 4, 16, 1)
    assert len(network.buffer_specs) == 2 * 53
    extents = {
        node.inputs[1].name: [int(extent) for extent in node.outputs[0].shape[1:]]
        for node in network.nodes
        if node.op_type == "Conv"
    }
    assert extents["conv0.weight"] == [64, 112, 112]
    # The 3 x 3 convolution has the stride, as in Goyal et al.: the one before it still sees every pixel.
    assert extents["stage2.block0.conv1.weight"] == [128, 56, 56]
    assert extents["stage2.block0.conv2.weight"] == [128, 28, 28]
    assert extents["stage4.block2.conv3.weight"] == [2048, 7, 7]
    assert count(resnet50(blocks=(3, 4, 23, 3))) == 44_549_160
    assert resnet50(classes=10, image=64).outputs["logits"].shape == ("N", 10)


def test_initial_weights_of_resnet50() -> None:
    network = resnet50(width=16)
    for block, count_of in enumerate((3, 4, 6, 3), start=1):
        for index in range(count_of):
            assert (network.initial(f"stage{block}.block{index}.conv3.scale") == 0).all()
            assert (network.initial(f"stage{block}.block{index}.conv2.scale") == 1).all()
        assert (network.initial(f"stage{block}.block0.shortcut.scale") == 1).all()
    # 512 000 normal draws: relative standard error of the deviation 0.1 %; four of them.
    assert network.initial("fc.weight").std() == pytest.approx(0.01, rel=0.004)
    assert (network.initial("fc.bias") == 0).all()


def test_inception_has_the_modules_of_the_paper() -> None:
    network = inception()
    joined = [node.outputs[0].shape for node in network.nodes if node.op_type == "Concat"]
    # The output sizes of 3a, 3b and 4a in table 1, for images of 32 instead of 224 pixels.
    assert [[int(extent) for extent in shape[1:]] for shape in joined] == [[256, 16, 16], [480, 16, 16], [512, 8, 8]]
    assert sum(node.op_type == "Conv" for node in network.nodes) == 3 + 3 * 6


def test_transformer_has_the_sizes_of_the_paper() -> None:
    width, length, vocabulary, layers = 16, 4, 9, 3
    network = transformer(width=width, length=length, vocabulary=vocabulary, layers=layers, heads=4)
    # Per block: 4 w² + 4 w in the attention, 8 w² + 5 w in the feed-forward layer, 4 w in two normalizations.
    block = 12 * width**2 + 13 * width
    assert count(network) == (vocabulary + length) * width + layers * block + 2 * width + 10 * width + 10
    kinds = Counter(node.op_type for node in network.nodes)
    assert (kinds["Softmax"], kinds["Gelu"], kinds["LayerNormalization"]) == (layers, layers, 2 * layers + 1)
    assert not kinds["Dropout"] + kinds["Where"]
    assert Counter(node.op_type for node in transformer(layers=3, dropout=0.1).nodes)["Dropout"] == 1 + 3 * layers
    assert network.inputs["input"] == d5.TensorSpec(shape=("N", length), dtype="int64")


def test_options_of_the_transformer_change_its_form_alone() -> None:
    """A longer table of positions and a GELU in basic operators compute the same from the same weights."""
    sizes: dict[str, Any] = {"width": 8, "length": 5, "heads": 2, "layers": 2, "vocabulary": 7, "dtype": "float64"}
    plain, formed = transformer(**sizes), transformer(**sizes, positions=9, gelu="erf")
    assert formed.parameter_specs["position"].shape == (9, 8)
    kinds = Counter(node.op_type for node in formed.nodes)
    assert (kinds["Slice"], kinds["Erf"], kinds["Gelu"]) == (1, 2, 0)
    weights = {name: formed.initial(name) for name in formed.parameter_specs}
    feed = {"input": batch(plain)["input"], **weights}
    got = ReferenceEvaluator(formed.with_outputs(["logits"]).to_onnx()).run(["logits"], feed)[0]
    feed["position"] = weights["position"][:5]
    expected = ReferenceEvaluator(plain.with_outputs(["logits"]).to_onnx()).run(["logits"], feed)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)  # float64, about fifty operations


def test_attention_is_the_equation() -> None:
    """The weights of a causal attention, from its queries and keys: softmax(q k^T / sqrt(d)), no later positions."""
    network = transformer(width=8, length=5, heads=2, layers=1, vocabulary=7, causal=True, dtype="float64")
    values = {node.op_type: node.outputs[0].name for node in network.nodes if node.op_type == "Softmax"}
    qkv = next(node.outputs for node in network.nodes if node.op_type == "Split")
    names = [values["Softmax"], *(value.name for value in qkv)]
    feed = {"input": batch(network)["input"]}
    weights, q, k, _ = ReferenceEvaluator(network.with_outputs(names).to_onnx()).run(names, feed)
    q, k = (part.reshape(3, 5, 2, 4).transpose(0, 2, 1, 3) for part in (q, k))
    scores = np.where(np.tril(np.ones((5, 5))) > 0, q @ k.swapaxes(2, 3) / 2.0, -np.inf)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-15)  # float64, a dozen operations
    assert (weights[:, :, 0, 1:] == 0).all()


def test_vit_reads_patches_row_by_row() -> None:
    """Equation 1 of Dosovitskiy et al.: class token, then the patches times a matrix, plus positions."""
    network = vit(image=6, patch=3, channels=2, width=8, heads=2, layers=1, classes=3, dtype="float64", seed=1)
    weights = {name: network.initial(name) for name in network.parameter_specs}
    draw = np.random.default_rng(0)
    weights["class_token"] = draw.standard_normal((1, 1, 8))
    x = draw.standard_normal((2, 2, 6, 6))
    patches = [x[:, :, row : row + 3, column : column + 3] for row in (0, 3) for column in (0, 3)]
    embedded = [patch.reshape(2, 18) @ weights["patches.weight"].reshape(8, 18).T for patch in patches]
    expected = np.stack([np.repeat(weights["class_token"][0], 2, axis=0), *embedded], axis=1) + weights["position"]
    first = next(node for node in network.nodes if node.op_type == "LayerNormalization")
    proto = network.with_outputs([first.inputs[0].name]).to_onnx()
    (found,) = ReferenceEvaluator(proto).run(None, {"input": x, **weights})
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)  # float64, sums of 18 products


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": 30}, "patches of 16 pixels do not divide an image of 30; allowed: a divisor of the image's size"),
        ({"patch": 0}, "got patch = 0; allowed: an integer of at least 1"),
        ({"heads": 5}, "5 heads do not divide a width of 768"),
        ({"channels": True}, "got channels = True"),
        ({"dropout": 1}, "got dropout = 1; allowed"),
    ],
)
def test_bad_arguments_of_vit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vit(**arguments)


def test_lstm_reads_the_sequence_in_order() -> None:
    """The cell of Gers et al., in NumPy, in float64."""
    network = lstm(features=3, hidden=4, length=5, classes=3, dtype="float64", seed=2)
    w, r, b, fc, bias = map(network.initial, network.parameter_specs)
    x = batch(network)["input"]
    h = c = np.zeros((3, 4))
    for step in range(5):
        gates = x[:, step] @ w[0].T + h @ r[0].T + b[0, :16] + b[0, 16:]
        i, o, f = (1 / (1 + np.exp(-gates[:, at : at + 4])) for at in (0, 4, 8))
        c = f * c + i * np.tanh(gates[:, 12:])
        h = o * np.tanh(c)
    got = ReferenceEvaluator(network.to_onnx()).run(["logits"], batch(network))[0]
    np.testing.assert_allclose(got, h @ fc.T + bias, rtol=1e-12, atol=1e-12)  # float64, about fifty operations
    # Uniform within 1/sqrt(hidden).
    assert all(np.abs(network.initial(name)).max() <= 0.5 for name in network.parameter_specs)


def test_initial_weights_of_the_transformer() -> None:
    network = transformer(width=64)
    weight = network.initial("block0.feed_forward.in.weight")
    # 16 384 normal draws: relative standard error of the deviation 0.55 %; four of them.
    assert weight.std() == pytest.approx(0.02, rel=0.022)
    assert (network.initial("block0.attention.norm.scale") == 1).all()
    assert (network.initial("block0.attention.qkv.bias") == 0).all()


# Networks with a published number of parameters, with its source: docs/how_to/networks.md has the same table.
PUBLISHED: dict[str, tuple[Callable[[], Network], int]] = {
    "alexnet": (alexnet, 61_100_840),
    "densenet121": (densenet121, 7_978_856),
    "googlenet": (googlenet, 13_378_280),
    "googlenet without auxiliary classifiers": (lambda: googlenet(auxiliary=False), 6_998_552),
    "gpt": (gpt, 124_439_808),
    "mobilenet_v2": (mobilenet_v2, 3_504_872),
    "resnet18": (resnet18, 11_689_512),
    "resnet34": (resnet34, 21_797_672),
    "resnet50": (resnet50, 25_557_032),
    "resnet, depth 20": (lambda: resnet(depth=20), 269_722),
    "resnet, depth 32": (lambda: resnet(depth=32), 464_154),
    "resnet, depth 44": (resnet, 658_586),
    "resnet, depth 56": (lambda: resnet(depth=56), 853_018),
    "resnet, depth 110": (lambda: resnet(depth=110), 1_727_962),
    "squeezenet": (squeezenet, 1_248_424),
    "vgg, depth 11": (lambda: vgg(depth=11), 132_863_336),
    "vgg, depth 16": (vgg, 138_357_544),
    "vgg, depth 19": (lambda: vgg(depth=19), 143_667_240),
    "vit": (vit, 86_567_656),
    "wide_resnet": (wide_resnet, 36_479_194),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    make, published = PUBLISHED[name]
    assert count(make()) == published


def test_language_models_are_the_published_ones() -> None:
    # Zaremba et al., section 4.1: 650 units, 10,000 words, two layers; with a second bias per layer, see its docstring.
    network = lstm_language_model()
    assert count(network) - 2 * 4 * 650 == 2 * 10_000 * 650 + 10_000 + 2 * (4 * 650 * 1300 + 4 * 650)
    # The encoder of BERT's base model: twelve blocks of 768 features.
    blocks = transformer(vocabulary=1, length=1, width=768, heads=12, layers=12)
    assert sum(spec.size for name, spec in blocks.parameter_specs.items() if name.startswith("block")) == 85_054_464


def test_googlenet_has_the_layers_of_the_paper() -> None:
    network = googlenet()
    kinds = Counter(node.op_type for node in network.nodes)
    assert (kinds["Conv"], kinds["LRN"], kinds["SoftmaxCrossEntropyLoss"], kinds["Gemm"]) == (59, 2, 3, 5)
    extents = {
        node.inputs[1].name: [int(extent) for extent in node.outputs[0].shape[1:]]
        for node in network.nodes
        if node.op_type == "Conv"
    }
    # Table 1.
    assert extents["conv1.weight"] == [64, 112, 112]
    assert extents["conv2.weight"] == [192, 56, 56]
    assert extents["module4e.one.weight"] == [256, 14, 14]
    assert extents["module5b.five.weight"] == [128, 7, 7]
    assert extents["auxiliary1.conv.weight"] == [128, 4, 4]
    names = {node.name for node in googlenet(auxiliary=False, dropout=0.0).nodes if node.op_type == "Dropout"}
    assert not names


def test_the_auxiliary_losses_count_three_tenths() -> None:
    network = googlenet(width=4, image=65, classes=3, dropout=0.0)
    scores = [node.inputs[0].name for node in network.nodes if node.op_type == "SoftmaxCrossEntropyLoss"]
    session = onnxruntime.InferenceSession(network.with_outputs([*scores, "loss"]).to_onnx().SerializeToString())
    feed = batch(network)
    *logits, loss = session.run(None, feed)
    each = []
    for found in logits:
        rows = found.astype(np.float64)
        log_prob = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        each.append(-log_prob[np.arange(3), feed["label"]].mean())
    last = next(index for index, name in enumerate(scores) if name == "logits")
    # A handful of float32 operations on given logits.
    np.testing.assert_allclose(loss, each[last] + 0.3 * (sum(each) - each[last]), rtol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_in_two_runtimes(name: str) -> None:
    make, sizes = LANGUAGE[name]
    results = {}
    for dtype in ("float32", "float64"):
        network = make(**sizes, dtype=dtype, seed=1)
        length, vocabulary = sizes["length"], sizes["vocabulary"]
        assert {key: spec.shape for key, spec in network.outputs.items()} == {
            "logits": ("N", length, vocabulary),
            "loss": (),
        }
        feed, proto = batch(network), network.to_onnx()
        onnx.checker.check_model(proto, full_check=True)
        session: Any = (
            onnxruntime.InferenceSession(proto.SerializeToString()) if dtype == "float32" else ReferenceEvaluator(proto)
        )
        logits, results[dtype] = session.run(["logits", "loss"], feed)
        rows = logits.astype(np.float64).reshape(-1, vocabulary)
        log_prob = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        expected = -log_prob[np.arange(len(rows)), feed["label"].reshape(-1)].mean()
        np.testing.assert_allclose(results[dtype], expected, rtol=1e-5)  # a handful of float32 operations
    # About fifty float32 operations in a row on numbers of size one.
    np.testing.assert_allclose(results["float32"], results["float64"], rtol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_does_not_see_what_follows(name: str) -> None:
    make, sizes = LANGUAGE[name]
    network = make(**sizes, dtype="float64")
    evaluator, feed = ReferenceEvaluator(network.to_onnx()), batch(network)
    before = evaluator.run(["logits"], feed)[0]
    feed["input"][:, -1] = 10
    after = evaluator.run(["logits"], feed)[0]
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] != after[:, -1]).any()


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lenet(activation="tnh"), "unknown activation 'tnh'; allowed: tanh, relu"),
        (lambda: lenet(pooling="mean"), "unknown pooling 'mean'; allowed: average, max"),
        (lambda: lenet(classes=0), "got classes = 0; allowed: an integer of at least 1"),
        (lambda: lenet(dtype="int8"), "unknown dtype 'int8' of a network; allowed: float32, float64"),
        (lambda: mlp(hidden=2.5), "got hidden = 2.5; allowed: an integer"),  # type: ignore[arg-type]
        (lambda: mlp(features=True), "got features = True; allowed: an integer"),
        (lambda: mlp(dropout=1.0), "got dropout = 1.0; allowed: a number from 0 up to, not including, 1"),
        (lambda: mlp(dropout="half"), "got dropout = 'half'; allowed"),  # type: ignore[arg-type]
        (lambda: resnet(depth=9), "a resnet of depth 9 does not exist; allowed: 6n + 2"),
        (lambda: resnet(depth=2), "a resnet of depth 2 does not exist"),
        (lambda: resnet(depth="44"), "got depth = '44'; allowed: an integer"),  # type: ignore[arg-type]
        (lambda: alexnet(image=62), "got image = 62 for AlexNet; allowed: at least 63"),
        (lambda: alexnet(dropout=1.0), "got dropout = 1.0; allowed: a number from 0 up to, not including, 1"),
        (lambda: densenet121(image=28), "got image = 28 for 4 dense blocks; allowed: at least 29"),
        (lambda: densenet121(blocks=()), "got blocks = (); allowed: integers, such as"),
        (lambda: googlenet(image=64), "got image = 64 with auxiliary classifiers; allowed: at least 65; remedy: aux"),
        (lambda: gpt(width=10, heads=4), "4 heads do not divide a width of 10; allowed: a divisor of the width"),
        (lambda: gpt(length=8, positions=7), "got 7 positions for 8 tokens; allowed: positions of at least"),
        (lambda: lstm_language_model(layers=0), "got layers = 0; allowed: an integer"),
        (lambda: mobilenet_v2(multiplier=0.0), "got multiplier = 0.0; allowed: a number above 0"),
        (lambda: squeezenet(image=34), "got image = 34 for SqueezeNet; allowed: at least 35"),
        (lambda: vgg(depth=12), "a vgg of depth 12 does not exist; allowed: 11, 13, 16, 19"),
        (lambda: vgg(image=31), "got image = 31 for VGG; allowed: at least 32"),
        (lambda: wide_resnet(depth=12), "a wide resnet of depth 12 does not exist; allowed: 6n + 4"),
        (lambda: resnet18_small(width=0), "got width = 0; allowed: an integer"),
        (lambda: resnet50(image=0), "got image = 0; allowed: an integer"),
        (lambda: resnet50(blocks=(3, 4, 6)), "got blocks = (3, 4, 6); allowed: four integers, such as"),
        (lambda: resnet50(blocks=(3, 4, 0, 3)), "got blocks = 0; allowed: an integer of at least 1"),
        (lambda: resnet50(blocks=50), "got blocks = 50; allowed: four integers"),  # type: ignore[arg-type]
        (lambda: inception(image=-1), "got image = -1; allowed: an integer"),
        (
            lambda: transformer(width=10, heads=4),
            "4 heads do not divide a width of 10; allowed: a divisor of the width",
        ),
        (lambda: transformer(length=8, positions=7), "got 7 positions for 8 tokens; allowed: positions of at least"),
        (lambda: transformer(positions=0), "got positions = 0; allowed: an integer"),
        (lambda: transformer(gelu="tanh"), "unknown gelu 'tanh'; allowed: operator, erf"),
        (lambda: transformer(dropout=-0.1), "got dropout = -0.1; allowed: a number from 0"),
        (lambda: lstm(length=0), "got length = 0; allowed: an integer"),
        *(
            (lambda make=make: make(loss="hinge"), "unknown loss 'hinge'; allowed: cross_entropy, mse")
            for make, _ in SMALL.values()
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make()
