"""A recurrent network that transcribes speech, trained by connectionist temporal classification."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import check_arguments

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["deep_speech"]

_BLANK = 0
# Hannun et al., section 2: the clipped rectifier min(max(0, z), 20).
_CLIP = 20.0


def deep_speech(
    *,
    features: int = 40,
    classes: int = 11,
    most: int = 8,
    channels: int = 64,
    kernel: int = 11,
    stride: int = 2,
    width: int = 64,
    layers: int = 2,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A convolution over time, bidirectional GRUs whose two directions are added, and a linear layer to the classes.

    The loss is the operator `deep5.CTCLoss`, the mean of the samples' costs. Class 0 is the blank. What is after the
    end of a sequence does not change its outputs or its cost, however long the batch is. The published networks are
    larger; the second has batch normalization, which this one has not. OpenVINO refuses the network, because it
    divides no int64.

    Args:
        features: Features per frame.
        classes: Number of classes, with the blank.
        most: The largest number of labels of a sample.
        channels: Channels of the convolution.
        kernel: Its frames, an odd number.
        stride: Frames from one of its outputs to the next.
        width: Size of each direction's state.
        layers: Number of bidirectional layers.
        dtype: Element type of parameters and features.
        seed: Seed of the initial weights: all uniform within ±1 / sqrt(n) of n inputs, or of n = width in recurrent
            layers, as in PyTorch.

    Returns:
        Inputs `input` (N, length, features), `labels` (N, most) int64, whose first `label_length` (N,) int64 of a row
        count, and `input_length` (N,) int64, the frames of each sample. Outputs `log_probabilities` (N, steps, classes)
        with steps = ceil(length / stride), `output_length` (N,) int64, the steps that count, and the scalar `loss`. A
        sample with fewer steps than its labels need has an infinite cost.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or an even kernel.

    References:
        Hannun et al., Deep Speech: Scaling up end-to-end speech recognition, arXiv:1412.5567, section 2; Amodei et al.,
        Deep Speech 2: End-to-end speech recognition in English and Mandarin, arXiv:1512.02595, section 3 (a strided
        convolution over time, and bidirectional GRUs).

    >>> import deep5 as d5
    >>> network = d5.networks.deep_speech(features=8, classes=5, most=3, width=16)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, length, 8]', 'labels': 'int64[N, 3]', 'input_length': 'int64[N]', 'label_length': 'int64[N]'}
    >>> list(network.outputs)
    ['log_probabilities', 'output_length', 'loss']
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

    sizes = {
        "features": features,
        "classes": classes,
        "most": most,
        "channels": channels,
        "kernel": kernel,
        "stride": stride,
        "width": width,
        "layers": layers,
    }
    check_arguments(dtype, "cross_entropy", **sizes)
    if classes < 2:
        raise UsageError(f"deep_speech with {classes} classes; allowed: at least 2, the blank and another one")
    if kernel % 2 == 0:
        raise UsageError(f"deep_speech with a kernel of {kernel} frames; allowed: an odd number")
    build = NetworkBuilder("deep_speech", dtype=dtype, seed=seed)
    x: Any = build.input("input", ("N", "length", features))
    labels = build.input("labels", ("N", most), "int64")
    frames = build.input("input_length", ("N",), "int64")
    label_length = build.input("label_length", ("N",), "int64")

    # ceil(frames / stride): the outputs of the convolution that are centered on a frame of the sample.
    rounded = build.op("Add", frames, build.constant("rounding", np.array(stride - 1)))
    steps = build.op("Div", rounded, build.constant("stride", np.array(stride)))
    steps32 = build.op("Cast", steps, to=6)  # int32
    inputs = features * kernel
    x = build.op(
        "Conv",
        build.op("Transpose", x, perm=[0, 2, 1]),
        build.parameter("conv.weight", (channels, features, kernel), _uniform(inputs)),
        build.parameter("conv.bias", (channels,), _uniform(inputs)),
        kernel_shape=[kernel],
        pads=[kernel // 2] * 2,
        strides=[stride],
    )
    x = build.op("Clip", x, build.scalar(0.0), build.scalar(_CLIP))
    x = build.op("Transpose", x, perm=[2, 0, 1])
    directions = build.constant("directions", np.array([1]))
    for layer in range(layers):
        size, init = width if layer else channels, _uniform(width)
        both = build.op(
            "GRU",
            x,
            build.parameter(f"gru{layer}.input_weight", (2, 3 * width, size), init),
            build.parameter(f"gru{layer}.hidden_weight", (2, 3 * width, width), init),
            build.parameter(f"gru{layer}.bias", (2, 6 * width), init),
            steps32,
            hidden_size=width,
            linear_before_reset=1,
            direction="bidirectional",
        )
        x = build.op("ReduceSum", both, directions, keepdims=0)
    x = build.op("MatMul", x, build.parameter("fc.weight", (width, classes), _uniform(width)))
    activations = build.op("Add", x, build.parameter("fc.bias", (classes,), _uniform(width)))
    log_probabilities = build.op("LogSoftmax", build.op("Transpose", activations, perm=[1, 0, 2]), axis=-1)
    costs = _costs(build, activations, labels, label_length, steps32, most, classes)
    loss = build.op("ReduceMean", costs, keepdims=0)
    return build.network({"log_probabilities": log_probabilities, "output_length": steps, "loss": loss})


def _costs(
    build: NetworkBuilder, activations: Any, labels: Any, label_length: Any, steps: Any, most: int, classes: int
) -> Any:
    """The CTC loss of each sample, (N,).

    The operator takes the labels of all samples without padding between them, whose number would depend on the data,
    as no compiled graph allows. So each sample is followed by one that has the padding as its labels, and no steps; its
    cost is not used.
    """
    import numpy as np

    def ints(name: str, *values: int) -> Any:
        return build.constant(f"ctc.{name}", np.array(values))

    axis = ints("axis", 1)
    place = build.constant("ctc.place", np.arange(most)[None])
    there = build.op("Less", place, build.op("Unsqueeze", label_length, axis))
    padding = build.constant("ctc.padding", np.array(_BLANK + 1))
    flat = build.op("Reshape", build.op("Where", there, labels, padding), ints("flat", -1))
    rest = build.op("Sub", ints("most", most), label_length)
    lengths = build.op("Concat", build.op("Unsqueeze", label_length, axis), build.op("Unsqueeze", rest, axis), axis=1)
    after = build.op("Unsqueeze", steps, axis)
    all_steps = build.op("Concat", after, build.op("Sub", after, after), axis=1)
    pairs = build.op("Unsqueeze", activations, ints("pairs", 2))
    pairs = build.op("Concat", pairs, pairs, axis=2)
    costs = build.op(
        "CTCLoss",
        build.op("Reshape", pairs, ints("samples", 0, -1, classes)),
        build.op("Cast", flat, to=6),
        build.op("Cast", build.op("Reshape", lengths, ints("each", -1)), to=6),
        build.op("Reshape", all_steps, ints("every", -1)),
        domain="deep5",
        blank=_BLANK,
        zero_infinity=0,
    )
    costs = build.op("Reshape", costs, ints("two", -1, 2))
    return build.op("Gather", costs, build.constant("ctc.first", np.array(0)), axis=1)


def _uniform(inputs: int) -> Any:
    """Uniform within ±1 / sqrt(inputs)."""
    limit = 1.0 / math.sqrt(inputs)

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-limit, limit, shape)

    return draw
