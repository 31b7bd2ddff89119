"""The process of a server, as `deep5 serve` and loads over HTTP start it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from deep5.core.plugins import framework

__all__ = ["serve_file", "serve_network"]


def serve_network(
    network: Any,
    *,
    name: str,
    framework_name: str,
    device: str = "cpu",
    threads: int | None = None,
    max_batch: int = 1,
    deadline_s: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Any = None,
    on_start: Callable[[str, str], None],
) -> int:
    """Serve a network until SIGINT or SIGTERM.

    Args:
        network: The network; its loss is left out.
        name: Name of the model for clients.
        framework_name: Name of the framework that runs it.
        device: Where it runs.
        threads: Threads within an operator; None: the framework's own setting.
        max_batch: Most samples in a batch.
        deadline_s: Longest wait of the oldest sample for a fuller batch.
        host: Address to listen at.
        port: Port; 0: a free one.
        limits: A `deep5.bench.serving.http_server.Limits`, or None.
        on_start: Called with the URL and the model's name when clients can connect.

    Returns:
        Number of answered requests.

    Raises:
        MissingDependency: The extra `serving` is not installed.
        UsageError: The framework, the network or the address cannot be used.
    """
    import numpy as np

    from deep5.bench.serving.http_server import LOOPBACK, application, serve
    from deep5.bench.serving.model import ServedModel, served_network
    from deep5.bench.serving.system import BatchServer
    from deep5.core.tensors import numpy_dtype

    found = framework(framework_name)
    if threads is not None:
        found.set_threads(threads)
    model = ServedModel(found.executor(served_network(network), device=device), name=name, max_batch=max_batch)
    known = {key: [size for size in spec.shape if isinstance(size, int)] for key, spec in model.inputs.items()}
    if all(len(known[key]) == len(spec.shape) for key, spec in model.inputs.items()):
        model.warm_up({key: np.zeros(known[key], numpy_dtype(spec.dtype)) for key, spec in model.inputs.items()})
    with BatchServer(model.run, max_batch=max_batch, deadline_s=deadline_s) as batches:
        app = application(model, batches, limits, own_names_only=host == LOOPBACK)
        address = f"[{host}]" if ":" in host else host
        return serve(app, host=host, port=port, on_start=lambda _, at: on_start(f"http://{address}:{at}", name))


def serve_file(path: str, options: dict[str, Any]) -> None:
    """Serve an ONNX file, in the process that a load starts; reports the address as JSON on standard output.

    Args:
        path: The file.
        options: Of `serve_network`.
    """
    from deep5.networks.network import Network

    def started(url: str, model: str) -> None:
        sys.stdout.write(json.dumps({"url": url, "model": model}) + "\n")
        sys.stdout.flush()

    serve_network(Network.from_onnx(path), on_start=started, **options)
