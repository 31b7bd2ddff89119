"""The sliding window of convolution and pooling, by the positions where a window may start.

The gradient rules and the other back-ends compute sizes by formula (`deep5.networks.gradients.window`). Here the starts
of a window are listed and counted, so an error in one differs from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute

__all__ = ["Window"]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The window attributes of an ONNX node; every tuple has one entry per spatial axis.

    Attributes:
        kernel: Size; empty if the shape of the weights defines it.
        strides: Steps between windows.
        dilations: Steps between the elements of a window.
        begins: Padding before the input.
        ends: Padding after it.
        auto_pad: ONNX's `auto_pad`; `begins` and `ends` apply only if it is `"NOTSET"`.
        ceil: Whether a partial last window counts (pooling's `ceil_mode`).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil: bool = False

    @classmethod
    def of(cls, node: ir.Node, rank: int) -> Window:
        """Read the attributes of a node with `rank` spatial axes; omitted ones have ONNX's defaults."""
        ones = [1] * rank
        pads = list(attribute(node, "pads", [0] * (2 * rank)))
        return cls(
            kernel=tuple(attribute(node, "kernel_shape", ())),
            strides=tuple(attribute(node, "strides", ones)),
            dilations=tuple(attribute(node, "dilations", ones)),
            begins=tuple(pads[:rank]),
            ends=tuple(pads[rank:]),
            auto_pad=attribute(node, "auto_pad", "NOTSET"),
            ceil=attribute(node, "ceil_mode", 0) != 0,
        )

    @property
    def padded(self) -> bool:
        """Whether the node requests padding."""
        if self.auto_pad == "NOTSET":
            return any(self.begins) or any(self.ends)
        return self.auto_pad.startswith("SAME")

    def spans(self, kernel: Sequence[int]) -> tuple[int, ...]:
        """Distance from the first element of a dilated kernel to its last, both included."""
        return tuple(1 + sum(step for _ in range(size - 1)) for size, step in zip(kernel, self.dilations, strict=True))

    def fit(
        self, sizes: Sequence[int], kernel: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The positions of the window over an input.

        Args:
            sizes: Spatial sizes of the input.
            kernel: Spatial sizes of the kernel.

        Returns:
            Output sizes, padding before, padding after.

        References:
            ONNX, Conv-11: SAME gives as many windows as multiples of the stride lie in the input; MaxPool-12 and
            AveragePool-19: with `ceil_mode` the last window may reach beyond the padding, but not start after the input
            and the padding before it.
        """
        fitted = [
            self._fit(axis, size, span) for axis, (size, span) in enumerate(zip(sizes, self.spans(kernel), strict=True))
        ]
        counts, begins, ends = zip(*fitted, strict=True) if fitted else ((), (), ())
        return counts, begins, ends

    def _fit(self, axis: int, size: int, span: int) -> tuple[int, int, int]:
        stride = self.strides[axis]
        if self.auto_pad.startswith("SAME"):
            count = len(range(0, size, stride))
            reach = (count - 1) * stride + span
            missing = max(0, reach - size)
            larger, smaller = missing - missing // 2, missing // 2
            begin, end = (smaller, larger) if self.auto_pad == "SAME_UPPER" else (larger, smaller)
            return count, begin, end
        begin, end = (0, 0) if self.auto_pad == "VALID" else (self.begins[axis], self.ends[axis])
        # The last start in the padded input whose window still fits.
        last = begin + size + end - span
        ceil = self.ceil and self.auto_pad != "VALID"
        # Full windows; below 1 if none fits, which the caller rejects. A partial one may follow.
        count = len(range(0, last + 1, stride)) if last >= 0 else last // stride + 1
        if ceil and last % stride:
            count += 1
        if ceil and (count - 1) * stride >= begin + size:
            count -= 1  # the partial window would start after the input
        return count, begin, end
