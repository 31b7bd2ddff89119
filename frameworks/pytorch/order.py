"""`KeepOrder`: torch's compiler for the host never reads an array before what is added to it in place."""

from __future__ import annotations

from typing import Any

from torch._inductor import custom_graph_pass

__all__ = ["KeepOrder"]


class KeepOrder(getattr(custom_graph_pass, "CustomSchedulerPass", object)):  # type: ignore[misc]
    """Has the steps of a graph keep what they wait for; torch's compiler calls it before it fuses them.

    A step that reads an array behind a change in place, as the gradient of max pooling does behind `scatter_add`, waits
    for the change under a name of the array's own. Where torch gives a step other loops, to fuse it with its neighbour,
    it works out anew what the step reads, and forgets that name: the step may then run first, and read what the array
    was filled with. Known as pytorch/pytorch issues 174969 and 177631, mended there for some steps alone.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The same steps, in the same order."""
        for node in nodes:
            for step in node.get_nodes():
                if hasattr(step, "recompute_size_and_body"):
                    step.recompute_size_and_body = _KeptNames(step)
        return nodes

    def uuid(self) -> bytes:
        """Compiled code is found again where the pass is the same."""
        digest: bytes = custom_graph_pass.get_hash_for_files((__file__,))
        return digest


class _KeptNames:
    """`recompute_size_and_body` of a step, which keeps its names and what it waits for otherwise."""

    def __init__(self, step: Any) -> None:
        self._step, self._recompute = step, step.recompute_size_and_body

    def __call__(self, *args: Any, **options: Any) -> None:
        step, before = self._step, self._step.read_writes.reads
        self._recompute(*args, **options)
        # Reads without an index are no part of the loops: they say what must have run.
        waits = type(before)(read for read in before if not _indexed(read))
        step.set_read_writes(step.read_writes.with_read(waits).rename(step.mutation_renames))


def _indexed(read: Any) -> bool:
    return type(read).__name__ not in ("WeakDep", "StarDep")
