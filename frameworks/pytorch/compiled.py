"""`Compiler`: the mode `pytorch:compiled`, torch.compile over the generated functions."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch

from deep5.compiler import cache_folder
from deep5.errors import Unsupported
from deep5.networks.network import Network

__all__ = ["Compiler"]

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class Compiler:
    """Compiles an executor's functions, each as one graph; torch compiles the backward pass with it.

    The symbolic extents of a network's inputs stay open: batches of any size run what one call compiled, except those
    of size 1, which torch compiles apart. A first call takes seconds. What torch compiles is kept in deep5's cache
    folder, unless TORCHINDUCTOR_CACHE_DIR says otherwise, and is found there by later processes.

    Raises:
        Unsupported: There is no C++ compiler.

    Attributes:
        compilations: How many graphs torch has compiled.
    """

    def __init__(self) -> None:
        # torch's own choice, looked at before it fails in the middle of a first call.
        command = os.environ.get("CXX") or "g++"
        if shutil.which(command) is None:
            raise Unsupported(
                f"pytorch:compiled needs a C++ compiler, and {command!r} is not there; remedy: install g++, set CXX to "
                "a C++ compiler, or run on 'pytorch'"
            )
        with warnings.catch_warnings():
            # torch warns of what it uses itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            import torch._inductor.compile_fx
            from torch._inductor.runtime.cache_dir_utils import default_cache_dir
        # torch writes its default into the environment too; what else stands there is somebody's choice.
        if os.environ.get(_CACHE, default_cache_dir()) == default_cache_dir():
            os.environ[_CACHE] = str(cache_folder() / "torchinductor")
        self._inductor = torch._dynamo.lookup_backend("inductor")
        self.compilations = 0

    def __call__(self, function: Callable[..., Any], network: Network) -> Callable[..., Any]:
        """The function, compiled at its first call.

        Args:
            function: Takes the inputs of the network in their order.
            network: Says which extents are symbolic.
        """
        compiled = torch.compile(function, backend=self._counted, fullgraph=True)
        symbolic = [
            [axis for axis, extent in enumerate(spec.shape) if isinstance(extent, str)]
            for spec in network.inputs.values()
        ]

        def run(*feed: Any) -> Any:
            marked = []
            for value, axes in zip(feed, symbolic, strict=True):
                # A tensor of its own, so that the caller's carries no mark; a leaf is the executor's.
                tensor = value if value.requires_grad else value.detach()
                for axis in axes:
                    if tensor.shape[axis] > 1:
                        torch._dynamo.maybe_mark_dynamic(tensor, axis)
                marked.append(tensor)
            try:
                return compiled(*marked)
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.CppCompileError) as error:
                raise Unsupported(
                    f"torch cannot compile this network: {_told(error)}; remedy: run it on 'pytorch', without "
                    "compilation"
                ) from error

        return run

    def _counted(self, graph: Any, inputs: Any) -> Any:
        self.compilations += 1
        return self._inductor(graph, inputs)


def _told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
