"""`KeepOrder`: keeps torch's CPU compiler from reading an array before an in-place addition to it."""

from __future__ import annotations

from typing import Any

from torch._inductor import custom_graph_pass

__all__ = ["KeepOrder"]


class KeepOrder(getattr(custom_graph_pass, "CustomSchedulerPass", object)):  # type: ignore[misc]
    """Preserves the dependencies of a graph's steps; torch's compiler calls it before fusion.

    A step that reads an array after an in-place change, as the gradient of max pooling does after `scatter_add`,
    depends on the change through a separate name of the array. When torch changes a step's loops, to fuse it with its
    neighbor, it recomputes the step's reads and loses that name: the step may then run first and read the initial
    values. Known as pytorch/pytorch issues 174969 and 177631, fixed there only for some steps.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The same steps, in the same order."""
        for node in nodes:
            for step in node.get_nodes():
                if hasattr(step, "recompute_size_and_body"):
                    step.recompute_size_and_body = _KeptNames(step)
        return nodes

    def uuid(self) -> bytes:
        """The cache key of compiled code: constant for the same pass."""
        digest: bytes = custom_graph_pass.get_hash_for_files((__file__,))
        return digest


class _KeptNames:
    """A step's `recompute_size_and_body`, which keeps names and dependencies that it would lose otherwise."""

    def __init__(self, step: Any) -> None:
        self._step, self._recompute = step, step.recompute_size_and_body

    def __call__(self, *args: Any, **options: Any) -> None:
        step, before = self._step, self._step.read_writes.reads
        self._recompute(*args, **options)
        # Reads without an index are not part of the loops: they are pure dependencies.
        waits = type(before)(read for read in before if not _indexed(read))
        step.set_read_writes(step.read_writes.with_read(waits).rename(step.mutation_renames))


def _indexed(read: Any) -> bool:
    return type(read).__name__ not in ("WeakDep", "StarDep")
