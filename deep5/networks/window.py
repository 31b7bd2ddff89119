"""The sliding window of convolution and pooling, as ONNX's attributes describe it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from deep5.networks.nodes import extents
from deep5.networks.onnx.attributes import attribute

__all__ = ["Window"]


@dataclass(frozen=True, kw_only=True)
class Window:
    """Kernel size and movement; every tuple has one entry per spatial axis.

    Attributes:
        kernel: Sizes; empty if the shape of the node's weights defines them.
        strides: Steps between output elements.
        dilations: Steps between kernel elements.
        begins: Padding before.
        ends: Padding after.
        auto_pad: ONNX's `auto_pad`; `begins` and `ends` are used only if it is `"NOTSET"`.
        ceil: Whether an incomplete last window counts (pooling's `ceil_mode`).
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
        """Read a node's attributes, with ONNX's defaults for `rank` spatial axes."""
        pads = tuple(attribute(node, "pads", (0,) * (2 * rank)))
        return cls(
            kernel=tuple(attribute(node, "kernel_shape", ())),
            strides=tuple(attribute(node, "strides", (1,) * rank)),
            dilations=tuple(attribute(node, "dilations", (1,) * rank)),
            begins=pads[:rank],
            ends=pads[rank:],
            auto_pad=attribute(node, "auto_pad", "NOTSET"),
            ceil=bool(attribute(node, "ceil_mode", 0)),
        )

    @classmethod
    def at(cls, node: ir.Node, weight: int = 1) -> Window:
        """The window with the sizes of its kernel: the node's, or of the weight at this position; 0: unknown."""
        sizes = attribute(node, "kernel_shape", None)
        if sizes is None:
            sizes = [extent if isinstance(extent, int) else 0 for extent in extents(node.inputs[weight])[2:]]
        return replace(cls.of(node, len(sizes)), kernel=tuple(sizes))

    @property
    def padded(self) -> bool:
        """Whether the attributes request padding."""
        return self.auto_pad not in ("NOTSET", "VALID") or any(self.begins + self.ends)

    def spans(self, kernel: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes that a dilated kernel covers."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, kernel, strict=True))

    def fit(
        self, extents: tuple[int, ...], kernel: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The positions of the window on an input.

        Args:
            extents: Spatial dimensions of the input.
            kernel: Sizes of the kernel.

        Returns:
            Output dimensions, padding before and padding after.

        References:
            ONNX operator specifications of Conv-11, AveragePool-19 and MaxPool-12: a window that would start in the
            padding after the input is omitted.
        """
        outputs, begins, ends = [], [], []
        for axis, (extent, span) in enumerate(zip(extents, self.spans(kernel), strict=True)):
            stride, begin, end = self.strides[axis], self.begins[axis], self.ends[axis]
            if self.auto_pad.startswith("SAME"):
                count = -(-extent // stride)
                total = max((count - 1) * stride + span - extent, 0)
                begin = total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2
                end = total - begin
            elif self.auto_pad == "VALID":
                begin = end = 0
                count = (extent - span) // stride + 1
            elif self.ceil:
                count = -(-(extent + begin + end - span) // stride) + 1
                if (count - 1) * stride >= extent + begin:
                    count -= 1
            else:
                count = (extent + begin + end - span) // stride + 1
            outputs.append(count)
            begins.append(begin)
            ends.append(end)
        return tuple(outputs), tuple(begins), tuple(ends)
