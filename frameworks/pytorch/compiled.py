"""`Compiler`: the mode `pytorch:compiled`, torch.compile over the generated functions."""

from __future__ import annotations

import functools
import os
import shutil
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch

from deep5.core.compiler import cache_folder, check_compiler
from deep5.core.errors import Deep5Error, Unsupported
from deep5.core.memo import remember
from deep5.core.private_files import ExposedFile, private_folder
from deep5.networks.network import Network

__all__ = ["Compiler"]

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
# Maximum number of kinds of calls of a function with compiled code at once.
_KINDS = 64


class Compiler:
    """Compiles an executor's functions, each as one graph; torch compiles the backward pass with it.

    The symbolic dimensions of a network's inputs are dynamic: one compilation serves all batch sizes, except size 1,
    which torch compiles separately. A first call takes seconds; so does the first one with other leaves. torch's
    compiled code is stored in deep5's cache folder, unless TORCHINDUCTOR_CACHE_DIR is set, and later processes reuse
    it.

    torch compiles a function at most eight times (`torch._dynamo.config.recompile_limit`). Each set of leaves has a
    separate function, with and without gradients; if it meets more kinds of inputs, it starts over.

    Running statistics change within the forward pass. On the host, labels are checked before it; any other failure, in
    the pass or after it, comes too late to prevent this change.

    Raises:
        Unsupported: There is no C++ compiler that works, or another user can change the cache.

    Attributes:
        compilations: Number of graphs that torch has compiled.
        leaves: Names of the tensors by which the next calls are differentiated.
    """

    def __init__(self) -> None:
        # torch's own choice, checked here so that a first call does not fail halfway.
        command = os.environ.get("CXX") or "g++"
        if shutil.which(command) is None:
            raise Unsupported(
                f"pytorch:compiled needs a C++ compiler, and {command!r} is not there; remedy: install g++, set CXX to "
                "a C++ compiler, or run on 'pytorch'"
            )
        try:
            check_compiler(command)
        except Deep5Error as error:
            raise Unsupported(f"pytorch:compiled needs a C++ compiler: {error}, or run on 'pytorch'") from error
        with warnings.catch_warnings():
            # torch warns about its own deprecated code.
            warnings.simplefilter("ignore", DeprecationWarning)
            import torch._inductor.compile_fx
            from torch._inductor.runtime.cache_dir_utils import default_cache_dir

            from deep5.frameworks.pytorch.order import KeepOrder
        # torch writes its default to the environment, too; any other value is the user's choice.
        if os.environ.get(_CACHE, default_cache_dir()) == default_cache_dir():
            folder = cache_folder() / "torchinductor"
            try:
                private_folder(folder, what="the cache of torch.compile", remedy=f"set {_CACHE} to such a folder")
            except (ExposedFile, OSError) as error:
                raise Unsupported(f"pytorch:compiled stores what it compiles: {error}") from error
            os.environ[_CACHE] = str(folder)
        inductor = torch._dynamo.lookup_backend("inductor")
        self._inductor = functools.partial(inductor, config_patches={"_pre_fusion_custom_pass": KeepOrder()})
        self.compilations = 0
        self.leaves: frozenset[str] = frozenset()

    def __call__(self, function: Callable[..., Any], network: Network) -> Callable[..., Any]:
        """The function, compiled at its first call.

        Args:
            function: Takes the network's inputs in order.
            network: Determines the symbolic dimensions.
        """
        own = _Functions(function, "this network", backend=self._counted, fullgraph=True)
        symbolic = [
            [axis for axis, extent in enumerate(spec.shape) if isinstance(extent, str)]
            for spec in network.inputs.values()
        ]

        def run(*feed: Any) -> Any:
            marked = []
            for value, axes in zip(feed, symbolic, strict=True):
                # A separate tensor, so that the caller's is not marked; leaves belong to the executor.
                tensor = value if value.requires_grad else value.detach()
                for axis in axes:
                    if tensor.shape[axis] > 1:
                        torch._dynamo.maybe_mark_dynamic(tensor, axis)
                marked.append(tensor)
            return own((torch.is_grad_enabled(), self.leaves), marked)

        return run

    def of_operator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of an operator, compiled at its first call for the shapes of that call.

        Args:
            function: Takes tensors.
        """
        own = _Functions(function, "this operator", backend=self._counted, fullgraph=True, dynamic=False)
        return lambda *inputs: own(None, inputs)

    def _counted(self, graph: Any, inputs: Any) -> Any:
        self.compilations += 1
        with warnings.catch_warnings():
            # On a GPU, torch recommends TF32, which deep5's numerics settings decide.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
            return self._inductor(graph, inputs)


class _Functions:
    """A function, compiled separately for each kind of call.

    Args:
        function: A Python function.
        what: Its name in messages.
        options: Arguments of `torch.compile`.
    """

    def __init__(self, function: Callable[..., Any], what: str, **options: Any) -> None:
        self._function, self._explained, self._options = function, _Explained(what), options
        self._made: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, kind: Hashable, inputs: Any) -> Any:
        compiled = self._made.get(kind) or self._make(kind)
        with self._explained:
            try:
                return compiled(*inputs)
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                pass
            return self._make(kind)(*inputs)

    def _make(self, kind: Hashable) -> Callable[..., Any]:
        function = self._function

        def run(*inputs: Any) -> Any:
            return function(*inputs)

        # A separate code object, by which torch caches and counts compilations, of a file: torch wraps a function of
        # generated source in another one, whose code object all of these share.
        own = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
        compiled: Callable[..., Any] = torch.compile(own, **self._options)
        return remember(self._made, kind, compiled, room=_KINDS)


class _Explained:
    """Inside the context, torch's compilation errors are converted to deep5's.

    An error of deep5 raised while torch traces an operator is raised itself.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, _failures()):
            return
        if (own := _own_error(error)) is not None:
            raise own from None
        raise Unsupported(
            f"torch cannot compile {self._what}: {_reported(error)}; remedy: run it on 'pytorch', without compilation"
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    """torch's exceptions for failed compilations."""
    errors = torch._dynamo.exc
    return (errors.TorchDynamoException, errors.FailOnRecompileLimitHit, torch._inductor.exc.CppCompileError)


def _own_error(error: BaseException | None) -> Deep5Error | None:
    """The deep5 error that caused a torch error; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, Deep5Error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _reported(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
