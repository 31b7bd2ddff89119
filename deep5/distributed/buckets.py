"""`Buckets`: packs the gradients of many parameters into few flat buffers, so that few messages carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from deep5.core.tensors import Array, TensorSpec, aligned_empty, numpy_dtype, to_numpy

__all__ = ["Buckets"]


class Buckets:
    """Packs gradients in reverse parameter order, the order in which a backward pass computes them.

    The layout depends only on the specifications: ranks agree on it without communication, and a resumed run has the
    same layout, so that sums over ranks repeat bit for bit.

    Args:
        specs: Parameters by name, in the network's order.
        bucket_bytes: A bucket is closed when it holds this many bytes.
        first_bytes: The limit of the first bucket of each dtype: a small one lets communication start early.

    Attributes:
        buffers: One flat NumPy array per bucket, in the order in which they are filled.
        names: The parameters of each bucket.
        views: Each parameter's gradient, a view of its buffer in the parameter's shape.
    """

    def __init__(
        self, specs: Mapping[str, TensorSpec], *, bucket_bytes: int = 25 << 20, first_bytes: int = 1 << 20
    ) -> None:
        groups: list[list[str]] = []
        open_groups: dict[str, tuple[list[str], int]] = {}
        for name in reversed(list(specs)):
            spec = specs[name]
            members, held = open_groups.get(spec.dtype, ([], -1))
            if held < 0:
                groups.append(members)
                held = 0
            members.append(name)
            held += spec.size * numpy_dtype(spec.dtype).itemsize
            first = not any(group is not members and specs[group[0]].dtype == spec.dtype for group in groups)
            open_groups[spec.dtype] = (members, held)
            if held >= (first_bytes if first else bucket_bytes):
                del open_groups[spec.dtype]
        self.names = [tuple(members) for members in groups]
        self.buffers: list[np.ndarray] = []
        self.views: dict[str, np.ndarray] = {}
        self._bucket_of: dict[str, int] = {}
        for index, names in enumerate(self.names):
            sizes = [specs[name].size for name in names]
            buffer = aligned_empty((sum(sizes),), numpy_dtype(specs[names[0]].dtype))
            buffer[...] = 0
            self.buffers.append(buffer)
            begin = 0
            for name, size in zip(names, sizes, strict=True):
                shape = tuple(int(extent) for extent in specs[name].shape)
                self.views[name] = buffer[begin : begin + size].reshape(shape)
                self._bucket_of[name] = index
                begin += size
        self._missing = [0] * len(self.names)
        self._next = 0
        self._weight = 1.0
        self._on_full: Callable[[int], None] = _nothing

    def begin(self, weight: float, on_full: Callable[[int], None] | None = None) -> None:
        """Prepare for the gradients of a step.

        Args:
            weight: Factor by which every gradient is multiplied.
            on_full: Called with the index of each bucket when it and all earlier ones are full: in the same order on
                every rank.
        """
        self._missing = [len(members) for members in self.names]
        self._next, self._weight, self._on_full = 0, weight, on_full or _nothing

    def put(self, name: str, gradient: Array) -> None:
        """Add a parameter's gradient, once per step; other gradients, such as those of inputs, are ignored."""
        if (index := self._bucket_of.get(name)) is None:
            return
        view, value = self.views[name], to_numpy(gradient)
        if self._weight == 1.0:
            np.copyto(view, value)
        elif self._weight == 0.0:
            # A gradient of weight zero may be anything, also NaN.
            view[...] = 0
        else:
            np.multiply(value, view.dtype.type(self._weight), out=view)
        self._missing[index] -= 1
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._next += 1
            self._on_full(self._next - 1)


def _nothing(index: int) -> None:
    """Do nothing: the caller passed no `on_full`."""
