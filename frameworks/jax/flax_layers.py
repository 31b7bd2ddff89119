"""Batch normalization and dropout of Flax while a model is traced: as equations for an export, or by given masks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from deep5.networks.layer_calls import GivenMasks, LayerCalls, Trace
from deep5.networks.run_modes import Mask

__all__ = ["DROPOUT", "NORMALIZATION", "FlaxCalls", "given_masks"]

NORMALIZATION = "deep5_batch_normalization"
"""The primitive of a batch normalization: of an array, scale, offset, mean and variance, with the channels last."""

DROPOUT = "deep5_dropout"
"""The primitive of a dropout."""

_BATCH_AXES = 2
_normalization = jax.extend.core.Primitive(NORMALIZATION)
_dropout = jax.extend.core.Primitive(DROPOUT)
_normalization.def_abstract_eval(lambda x, *vectors, **numbers: jax.core.ShapedArray(x.shape, x.dtype))
_dropout.def_abstract_eval(lambda x, **numbers: jax.core.ShapedArray(x.shape, x.dtype))

# Both get the layer, its array, whether it is in training, and the layer's own function; the first also a mask, and a
# function that returns scale, offset, mean and variance.
Normalize = Callable[[Any, Any, bool, Any, Callable[[], list[Any]], Callable[[], Any]], Any]
Drop = Callable[[Any, Any, Callable[[], Any]], Any]


class FlaxCalls(LayerCalls):
    """See `LayerCalls`; the calls become equations of the primitives above."""

    @contextmanager
    def traced(self, trace: Trace) -> Iterator[None]:
        """The context of a trace."""

        def normalize(
            layer: Any,
            x: Any,
            by_batch: bool,
            mask: Any,
            vectors: Callable[[], list[Any]],
            own: Callable[[], Any],
        ) -> Any:
            found = vectors()
            plain = mask is None and _is_plain(layer, x, found)
            if not self.normalizes(_identity(layer), type(layer).__name__, by_batch=by_batch, plain=plain):
                return own()
            moved = jnp.moveaxis(x, layer.axis, -1)
            ones = np.ones(moved.shape[-1], x.dtype)
            scale, offset, mean, variance = found
            result = _normalization.bind(
                moved,
                ones if scale is None else scale,
                0 * ones if offset is None else offset,
                mean,
                variance,
                epsilon=float(layer.epsilon),
                momentum=float(layer.momentum),
            )
            return jnp.moveaxis(result, -1, layer.axis)

        def drop(layer: Any, x: Any, own: Callable[[], Any]) -> Any:
            if self.trace == "evaluation":
                return own()
            self.drops = True
            if self.trace == "without dropout":
                return x
            return _dropout.bind(x, ratio=float(layer.rate), shared=_shared(layer, x))

        self.begin(trace)
        with _replaced(normalize, drop):
            yield


@contextmanager
def given_masks(name: str, masks: Sequence[tuple[Mask, Any]]) -> Iterator[None]:
    """Let Flax's layers drop by masks, the next one at each call; around a whole trace of the model.

    It replaces functions of Flax for all threads.

    Args:
        name: Name of the model that is traced, for messages.
        masks: What each is for, and its factors: 0, or 1 / (1 - ratio).

    Raises:
        Unsupported: The calls have other ratios or shapes, or there are more or fewer.
    """
    given = GivenMasks(name, masks)

    def drop(layer: Any, x: Any, own: Callable[[], Any]) -> Any:
        shared = _shared(layer, x)
        factors = given.factors(layer.rate, [1 if axis in shared else size for axis, size in enumerate(x.shape)])
        return x if factors is None else x * factors.astype(x.dtype)

    with _replaced(None, drop):
        yield
    given.check()


def _shared(layer: Any, x: Any) -> tuple[int, ...]:
    """The axes along which all elements are dropped or none."""
    return tuple(sorted(axis % x.ndim for axis in layer.broadcast_dims))


def _identity(layer: Any) -> int:
    """What two calls of one layer have in common, also if the layer is rebuilt for a call."""
    scope = getattr(layer, "scope", None)
    return id(layer) if scope is None else hash(tuple(scope.path))


def _is_plain(layer: Any, x: Any, vectors: Sequence[Any]) -> bool:
    """Whether a batch normalization is that of ONNX: over all elements of this process, in the type of its vectors."""
    return bool(
        isinstance(layer.axis, int)
        and layer.axis_name is None
        and x.ndim >= _BATCH_AXES
        and layer.axis % x.ndim != 0
        and x.dtype in (jnp.float32, jnp.float64)
        and layer.dtype in (None, x.dtype)
        and all(each is None or each.dtype == x.dtype for each in vectors)
    )


@contextmanager
def _replaced(normalize: Normalize | None, drop: Drop) -> Iterator[None]:
    """With functions in place of the calls of batch normalization, and of dropout that drops."""
    with ExitStack() as stack:
        if "flax.linen" in sys.modules:
            stack.enter_context(_replaced_linen(normalize, drop))
        if "flax.nnx" in sys.modules:
            stack.enter_context(_replaced_nnx(normalize, drop))
        yield


@contextmanager
def _replaced_linen(normalize: Normalize | None, drop: Drop) -> Iterator[None]:
    from flax import linen

    def intercepted(own: Any, given: Any, named: Any, context: Any) -> Any:
        layer, kind = context.module, type(context.module)
        if context.method_name != "__call__" or kind not in (linen.BatchNorm, linen.Dropout):
            return own(*given, **named)
        x, chosen = _first_two(given, named)

        def called() -> Any:
            return own(*given, **named)

        if kind is linen.Dropout:
            off = layer.deterministic if chosen is None else chosen
            return called() if off is None or off or not 0 < layer.rate < 1 else drop(layer, x, called)
        moving = layer.use_running_average if chosen is None else chosen
        if normalize is None or moving is None:
            return called()
        held = [("params", "scale"), ("params", "bias"), ("batch_stats", "mean"), ("batch_stats", "var")]
        return normalize(
            layer,
            x,
            not moving,
            named.get("mask"),
            lambda: [layer.get_variable(*each) if layer.has_variable(*each) else None for each in held],
            called,
        )

    with linen.intercept_methods(intercepted):
        yield


@contextmanager
def _replaced_nnx(normalize: Normalize | None, drop: Drop) -> Iterator[None]:
    import flax.nnx

    nnx: Any = flax.nnx
    batch_norm, dropout = nnx.BatchNorm.__call__, nnx.Dropout.__call__

    def normalized(self: Any, *given: Any, **named: Any) -> Any:
        x, chosen = _first_two(given, named)
        moving = self.use_running_average if chosen is None else chosen
        if normalize is None or moving is None:
            return batch_norm(self, *given, **named)
        vectors = (self.scale, self.bias, self.mean, self.var)
        return normalize(
            self,
            x,
            not moving,
            named.get("mask"),
            lambda: [None if each is None else each[...] for each in vectors],
            lambda: batch_norm(self, *given, **named),
        )

    def dropped(self: Any, inputs: Any, **named: Any) -> Any:
        chosen = named.get("deterministic")
        off = self.deterministic if chosen is None else chosen
        if off is None or off or not 0 < self.rate < 1:
            return dropout(self, inputs, **named)
        return drop(self, inputs, lambda: dropout(self, inputs, **named))

    try:
        nnx.BatchNorm.__call__, nnx.Dropout.__call__ = normalized, dropped
        yield
    finally:
        nnx.BatchNorm.__call__, nnx.Dropout.__call__ = batch_norm, dropout


def _first_two(given: Sequence[Any], named: Any) -> tuple[Any, Any]:
    """The array of a call, and whether it is in evaluation; None: the layer's attribute decides."""
    first = [*given, *(named[key] for key in ("x", "inputs") if key in named)]
    modes = [named[key] for key in ("use_running_average", "deterministic") if key in named]
    return first[0], first[1] if len(first) > 1 else modes[0] if modes else None
