"""`without_kernel`: the operators of a traced graph that cannot run on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

__all__ = ["without_kernel"]


def without_kernel(graph: Any) -> list[str]:
    """The operators of a graph for which TensorFlow has kernels, but no GPU kernel for their dtypes.

    Args:
        graph: A traced `tf.Graph`.

    Returns:
        Each operator once, such as `"MatMul of int64"`.
    """
    listed = graph.as_graph_def()
    nodes = [*listed.node, *(node for function in listed.library.function for node in function.node_def)]
    return list(dict.fromkeys(said for node in nodes if (said := _lacking(node))))


def _lacking(node: Any) -> str:
    """The node's operator if it has no GPU kernel; else an empty string."""
    kernels = _kernels(node.op)
    # Function calls have no kernel on any device.
    if not kernels or any(kernel.device_type in {"GPU", "DEFAULT"} and _fits(kernel, node) for kernel in kernels):
        return ""
    types = dict.fromkeys(tf.as_dtype(value.type).name for value in node.attr.values() if value.type)
    return f"{node.op} of {', '.join(types)}" if types else str(node.op)


@functools.cache
def _kernels(op: str) -> tuple[Any, ...]:
    from tensorflow.python.framework.kernels import get_registered_kernels_for_op

    return tuple(get_registered_kernels_for_op(op).kernel)


def _fits(kernel: Any, node: Any) -> bool:
    return all(node.attr[each.name].type in each.allowed_values.list.type for each in kernel.constraint)
