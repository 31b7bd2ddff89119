"""Networks and batches that show that back-ends train alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import deep5 as d5

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")


STEPS = 100


BATCH, CLASSES = 8, 4


# Networks and whether they are smooth; small, since the result does not depend on the width.
NETWORKS: dict[str, tuple[Callable[..., d5.Network], bool]] = {
    "mlp": (lambda **kw: d5.networks.mlp(features=12, hidden=9, classes=CLASSES, dropout=0.2, **kw), True),
    "lenet": (lambda **kw: d5.networks.lenet(classes=CLASSES, **kw), True),
    "lenet_relu": (lambda **kw: d5.networks.lenet(classes=CLASSES, activation="relu", pooling="max", **kw), False),
    "resnet18_small": (lambda **kw: d5.networks.resnet18_small(width=4, image=16, classes=CLASSES, **kw), False),
    "inception": (lambda **kw: d5.networks.inception(width=8, image=8, classes=CLASSES, **kw), False),
    "transformer": (
        lambda **kw: d5.networks.transformer(
            vocabulary=30, length=6, width=16, heads=2, layers=2, classes=CLASSES, dropout=0.1, **kw
        ),
        True,
    ),
    "lstm": (lambda **kw: d5.networks.lstm(features=5, hidden=6, length=5, classes=CLASSES, **kw), True),
    # With Where, Slice and Erf.
    "transformer_causal": (
        lambda **kw: d5.networks.transformer(
            vocabulary=30,
            length=6,
            width=16,
            heads=2,
            layers=2,
            classes=CLASSES,
            causal=True,
            positions=9,
            gelu="erf",
            dropout=0.1,
            **kw,
        ),
        True,
    ),
    # With the shortcuts that subsample and pad, as on CIFAR-10.
    "resnet": (lambda **kw: d5.networks.resnet(depth=8, classes=CLASSES, **kw), False),
}


def batches(network: d5.Network, steps: int = STEPS) -> Iterator[tuple[d5.StepInfo, dict[str, np.ndarray]]]:
    """Noise around one template per class; the last batch of every ten is smaller, as at the end of an epoch.

    A third of the labels is wrong: a loss near zero is a difference of nearly equal numbers and has no digits left.
    """
    draw = np.random.default_rng(0)
    spec, label = network.inputs["input"], network.inputs["label"]
    shape = tuple(int(extent) for extent in spec.shape[1:])
    whole = spec.dtype.startswith("int")
    templates = draw.integers(0, 30, (CLASSES, *shape)) if whole else draw.standard_normal((CLASSES, *shape))
    for step in range(steps):
        size = BATCH - 3 if step % 10 == 9 else BATCH
        classes = draw.integers(0, CLASSES, size)
        if whole:
            noise, keep = draw.integers(0, 30, (size, *shape)), draw.random((size, *shape)) < 0.8
            images = np.where(keep, templates[classes], noise)
        else:
            images = 0.3 * templates[classes] + 0.15 * draw.standard_normal((size, *shape))
        given = np.where(draw.random(size) < 1 / 3, draw.integers(0, CLASSES, size), classes)
        given = given if label.dtype.startswith("int") else np.eye(CLASSES)[given]
        info = d5.StepInfo(step=step, epoch=step // 10, batch_size=size)
        yield info, {"input": images.astype(spec.dtype), "label": given.astype(label.dtype)}
