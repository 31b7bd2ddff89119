"""Runs that can be stopped: of networks with a loop whose length only the run determines.

ONNX Runtime looks between two nodes whether it should stop. Python handles signals, such as Ctrl-C, only in a thread
that does not wait for ONNX Runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import onnx_ir as ir
import onnxruntime

from deep5.core.time_limit import TimeLimit
from deep5.networks.constants import constant_value
from deep5.networks.draft import Change

__all__ = ["is_open_ended", "run_stoppable", "with_a_node"]

# A loop of so many iterations is short.
_FEW = 1 << 12


def is_open_ended(nodes: Iterable[ir.Node]) -> bool:
    """Whether a network, nested graphs included, has a loop that may be long: of unknown length, or of a large one.

    Args:
        nodes: All its nodes.
    """
    for node in nodes:
        if node.op_type == "Loop" and not node.domain:
            count = constant_value(node.inputs[0]) if node.inputs else None
            if count is None or (count.size and count.max() > _FEW):
                return True
    return False


def run_stoppable(
    session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding, limit: TimeLimit | None
) -> None:
    """Run a session in another thread, and stop it if the time limit ends or this thread is interrupted.

    Args:
        session: The session.
        binding: Its inputs and outputs.
        limit: The limit in force, if there is one.

    Raises:
        RunFailed: The limit has passed.
        Exception: What the session raised.
    """
    options, failures = onnxruntime.RunOptions(), list[BaseException]()
    done = threading.Event()  # an interrupted `Thread.join` may take the thread for ended

    def work() -> None:
        try:
            session.run_with_iobinding(binding, options)
        except BaseException as error:  # raised again below
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="deep5-onnxruntime", daemon=True).start()
    try:
        ended = done.wait(None if limit is None else min(limit.remaining_s(), threading.TIMEOUT_MAX))
        if limit is not None and not ended:
            raise limit.exceeded("a network with a Loop on onnxruntime")
    finally:
        if not done.is_set():
            options.terminate = True
            done.wait()
    if failures:
        raise failures[0]


def with_a_node(node: ir.Node) -> Change | None:
    """The rewrite of a Loop whose body has no nodes, between which ONNX Runtime could stop; None for other nodes."""
    if node.op_type != "Loop" or node.domain or len(node.attributes["body"].as_graph()):
        return None
    return _add_a_node


def _add_a_node(graph: ir.Graph, node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    goes_on = body.outputs[0]
    made = ir.node("Identity", [goes_on])
    made.outputs[0].name = f"{goes_on.name}/passed_on"
    made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), goes_on.shape
    body.append(made)
    body.outputs[0] = made.outputs[0]
