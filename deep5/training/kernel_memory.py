"""`KernelMemory`: the memory of a rule's kernel except parameters and gradients."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.tensors import TensorSpec, aligned_empty
from deep5.training.emit_c import POINTERS, TOTALS, KernelArgs
from deep5.training.state_check import checked_state
from deep5.training.trace import TracedRule

__all__ = ["CHUNK", "KernelMemory", "address_of"]

# A chunk of every array that a rule uses fits in the second-level cache.
CHUNK = 8192
# Below this many elements a second thread costs more than it saves (about 10 us to wake it).
_PARALLEL = 1 << 17


class KernelMemory:
    """The optimizer's state, and the tables for a compiled kernel.

    Args:
        rules: The traced rule of each parameter; the same for all, unless it depends on shapes.
        specs: The parameters' specs by name, all of one dtype.
        groups: The group of each parameter.
        width: Numbers per group and step.
        per_tensor: Whether the rule's sums are over one parameter instead of all.
        scratch: Maximum number of scalars that a phase computes per parameter.
        threads: Maximum number of threads.

    Attributes:
        sizes: Elements of each parameter.
        shapes: Shape of each parameter.
        arrays: Names of the states that are arrays.
        scalars: Names of the scalar states.
        state: For each of `arrays`, flat memory by parameter; empty for parameters without this state.
        tables: The targets of the pointers in `KernelArgs`, by name.
        grad: Addresses of the gradients; the memory of `tables["grad"]`.
        given: The numbers of a step; the memory of `tables["given"]`.
        arguments: The arguments for a compiled kernel; valid as long as this object exists.
    """

    def __init__(
        self,
        rules: Sequence[TracedRule],
        specs: Mapping[str, TensorSpec],
        groups: Sequence[int],
        *,
        width: int,
        per_tensor: bool,
        scratch: int,
        threads: int,
    ) -> None:
        self._names = tuple(specs)
        self._dtype = next(iter(specs.values())).dtype
        self.sizes = [spec.size for spec in specs.values()]
        self.shapes = [tuple(map(int, spec.shape)) for spec in specs.values()]
        self._rules = rules
        self.arrays = tuple(dict.fromkeys(name for traced in rules for name in traced.arrays))
        self.scalars = tuple(dict.fromkeys(name for traced in rules for name in traced.scalars))
        self.state = {
            name: self.packed([0 if shape is None else math.prod(shape) for shape in self._shapes_of(name)])
            for name in self.arrays
        }
        chunks = [
            (tensor, begin, min(begin + CHUNK, size))
            for tensor, size in enumerate(self.sizes)
            for begin in range(0, size, CHUNK)
        ]
        table = np.ascontiguousarray(np.array(chunks, dtype=np.int64).reshape(-1, 3).T)
        tensors, sums, given = len(specs), len(rules[0].sums) if rules else 0, (max(groups, default=0) + 1) * width
        self.tables = {
            "chunk_tensor": table[0],
            "chunk_begin": table[1],
            "chunk_end": table[2],
            "grad": np.zeros(tensors, np.uint64),
            "param": np.zeros(tensors, np.uint64),
            "live": np.zeros(tensors, np.uint64),
            "state": np.array([[address_of(view) for view in self.state[name]] for name in self.arrays], np.uint64),
            "scalar_state": np.zeros((tensors, len(self.scalars))),
            "group": np.array(groups, np.int64),
            "given": np.zeros(given),
            "totals": np.zeros(len(TOTALS)),
            "sums": np.zeros((tensors if per_tensor else 1, sums)),
            "scratch": np.zeros((tensors, scratch)),
            "partial": np.zeros((len(chunks), max(sums, 1))),
        }
        # Shares the NumPy array's memory, but assigning a list to it takes a third of the time.
        self.grad: Any = (ctypes.c_uint64 * tensors).from_buffer(self.tables["grad"])
        self.given: Any = (ctypes.c_double * given).from_buffer(self.tables["given"]) if given else []
        self.arguments = KernelArgs(
            tensors=tensors,
            chunks=len(chunks),
            threads=threads if sum(self.sizes) >= _PARALLEL else 1,
            sum_stride=sums if per_tensor else 0,
            **{name: self.tables[name].ctypes.data for name in POINTERS},
        )

    def packed(self, sizes: Sequence[int] | None = None) -> list[np.ndarray]:
        """One block for all parameters, and an aligned view of it for each, of its own size or of these sizes."""
        sizes = self.sizes if sizes is None else sizes
        offsets = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)])
        block = aligned_empty((int(offsets[-1]),), self._dtype)
        return [block[offset : offset + size] for offset, size in zip(offsets, sizes, strict=False)]

    def _shapes_of(self, state: str) -> list[tuple[int, ...] | None]:
        """The shape of a state for each parameter; None for those that do not have it."""
        found: list[tuple[int, ...] | None] = []
        for traced, shape in zip(self._rules, self.shapes, strict=True):
            own = traced.states[state] if state in traced.arrays else None
            found.append(None if own is None else shape if own.dimensions is None else own.dimensions)
        return found

    def state_views(self) -> dict[str, np.ndarray]:
        """The state by `"<state>/<parameter>"`, live; states of shape () in float64."""
        found = {
            f"{state}/{name}": view.reshape(shape)
            for state, views in self.state.items()
            for name, view, shape in zip(self._names, views, self._shapes_of(state), strict=True)
            if shape is not None
        }
        for index, state in enumerate(self.scalars):
            for tensor, name in self._holders(state):
                found[f"{state}/{name}"] = np.asarray(self.tables["scalar_state"][tensor, index])
        return found

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the values of `state_views` exactly.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        given = checked_state(
            state, {key: (value.shape, str(value.dtype)) for key, value in self.state_views().items()}
        )
        for name, views in self.state.items():
            for parameter, view, shape in zip(self._names, views, self._shapes_of(name), strict=True):
                if shape is not None:
                    view[...] = given[f"{name}/{parameter}"].reshape(-1)
        for index, name in enumerate(self.scalars):
            for tensor, parameter in self._holders(name):
                self.tables["scalar_state"][tensor, index] = float(given[f"{name}/{parameter}"])

    def _holders(self, scalar: str) -> list[tuple[int, str]]:
        """Number and name of the parameters with this state of shape ()."""
        return [(tensor, name) for tensor, name in enumerate(self._names) if scalar in self._rules[tensor].scalars]


def address_of(array: np.ndarray) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])
