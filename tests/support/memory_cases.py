"""An operator in C++ that says where its memory lies: that no back-end copies what it need not."""

from __future__ import annotations

import numpy as np

import deep5 as d5

__all__ = ["Where", "addresses"]


class Where(d5.CppOperator):
    """Where its input and its output lie, in halves: OpenVINO, and JAX by itself, hold whole numbers of 32 bits."""

    source = """
    template <typename T>
    struct Where : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<int32_t> places) {
        const void* found[] = {x.data(), places.data()};
        std::memcpy(places.data(), found, sizeof found);
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (d5.TensorSpec(shape=(4,), dtype="int32"),)


def addresses(places: d5.Array) -> list[int]:
    """What it said."""
    found: list[int] = np.array(d5.to_numpy(places)).view(np.int64).tolist()
    return found
