"""Hand-written detectors on JAX, channels last; see `jax_dense` for what a class has.

In training, boxes and scores are not decoded: the loss needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.recipes.overhead.workloads.jax_dense import Model

__all__ = ["Centers", "SingleShot"]

Arrays = Mapping[str, np.ndarray]
Tree = Any

_STRIDES = (2, 2, 1, 1, 2, 1, 1)


class _Detector(Model):
    """The backbone: convolutions with batch normalization."""

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        def last(value: np.ndarray) -> np.ndarray:
            return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value

        return {name: last(value) for name, value in given.items()}

    def statistics(self, parameters: Tree) -> Tree:
        made = {}
        for index in range(len(_STRIDES)):
            scale = np.asarray(parameters[f"conv{index + 1}.scale"])
            made[f"conv{index + 1}"] = {"mean": np.zeros_like(scale), "variance": np.ones_like(scale)}
        return made

    def maps(self, p: Tree, statistics: Tree, x: Any) -> tuple[Any, Any, Tree]:
        """The fine and the coarse feature map, and the new statistics."""
        import jax
        import jax.numpy as jnp

        found, new = [], {}
        x = jnp.transpose(x, (0, 2, 3, 1))
        for index, stride in enumerate(_STRIDES):
            name = f"conv{index + 1}"
            x = _conv(x, p[f"{name}.weight"], stride)
            mean, variance, old = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2)), statistics[name]
            new[name] = {
                "mean": 0.9 * old["mean"] + 0.1 * mean,
                "variance": 0.9 * old["variance"] + 0.1 * variance,
            }
            x = (x - mean) * (p[f"{name}.scale"] * jax.lax.rsqrt(variance + 1e-5)) + p[f"{name}.bias"]
            x = jax.nn.relu(x)
            found.append(x)
        return found[3], found[6], new


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    from jax import lax

    around = [(kernel.shape[0] // 2,) * 2] * 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _head(p: Tree, name: str, x: Any) -> Any:
    return _conv(x, p[f"{name}.weight"]) + p[f"{name}.bias"]


class SingleShot(_Detector):
    """`d5.networks.ssd`."""

    inputs = ("input", "class_targets", "offset_targets")

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, class_targets: Any, offset_targets: Any) -> Any:  # noqa: A002
        import jax
        import jax.numpy as jnp
        import optax

        *maps, statistics = self.maps(p, statistics, input)

        def rows(name: str, size: int) -> Any:
            found = [_head(p, f"{name}{index + 1}", features) for index, features in enumerate(maps)]
            return jnp.concatenate([each.reshape(len(each), -1, size) for each in found], 1)

        logits, offsets = rows("classes", self.given["classes"]), rows("offsets", 4)
        entropy = optax.sigmoid_binary_cross_entropy(logits, class_targets)
        weight = 0.75 - 0.5 * class_targets
        focal = weight * jnp.square(jax.nn.sigmoid(logits) - class_targets) * entropy
        matched = class_targets.max(2, keepdims=True)
        error = optax.huber_loss(offsets, offset_targets) * matched
        sums = focal.sum((1, 2)) + error.sum((1, 2))
        return jnp.mean(sums / jnp.maximum(matched.sum((1, 2)), 1)), statistics


class Centers(_Detector):
    """`d5.networks.center_net`; its heads are (N, classes, H, W) like the targets."""

    inputs = ("input", "heat_targets", "size_targets")

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return {**super().values_of(given), "enlarge.weight": given["enlarge.weight"]}

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, heat_targets: Any, size_targets: Any) -> Any:  # noqa: A002
        import jax
        import jax.numpy as jnp

        fine, coarse, statistics = self.maps(p, statistics, input)
        # A transposed convolution whose windows do not overlap: one product for each pixel of a window.
        enlarged = jnp.einsum("nhwi,iokl->nhkwlo", coarse, p["enlarge.weight"])
        features = fine + enlarged.reshape(fine.shape)
        heat, size = (
            _head(p, name, jax.nn.relu(_head(p, f"{name}.conv", features))).transpose(0, 3, 1, 2)
            for name in ("heat", "size")
        )
        peaks = (heat_targets >= 1).astype(heat.dtype)
        probability = jax.nn.sigmoid(heat)
        at_peaks = peaks * jnp.square(1 - probability) * jax.nn.softplus(-heat)
        elsewhere = (1 - heat_targets) ** 4 * jnp.square(probability) * jax.nn.softplus(heat)
        weights = np.array([0.1, 0.1, 1.0, 1.0])[:, None, None].astype(heat.dtype)
        error = jnp.abs(size - size_targets) * peaks.max(1, keepdims=True) * weights
        sums = (at_peaks + elsewhere).sum((1, 2, 3)) + error.sum((1, 2, 3))
        return jnp.mean(sums / jnp.maximum(peaks.sum((1, 2, 3)), 1)), statistics
