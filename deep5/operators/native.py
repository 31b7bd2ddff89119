"""`NativeOperator`: an existing function of a framework as an operator, for deep5's checks and timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec

__all__ = ["NativeOperator"]


class NativeOperator(Operator):
    """A function of one framework's own arrays: `torch.nn.functional.conv2d`, a Keras layer, a function of JAX.

    It runs on that framework alone, is differentiated by it, and is called with its arrays as they are.

    Args:
        function: Takes native arrays, gives one or a tuple of them.
        framework: Whose, by name: `"pytorch"`.
        specs: Gives the outputs' specifications from the inputs'; None: whatever comes out is right.
        settings: Further arguments of the function, by name.

    Raises:
        UsageError: `function` cannot be called, or `framework` is no name.

    >>> NativeOperator(len, framework="pytorch").title
    'len'
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        framework: str,
        specs: Callable[..., tuple[TensorSpec, ...]] | None = None,
        **settings: Any,
    ) -> None:
        if not callable(function):
            raise UsageError(f"NativeOperator: got {brief(function)}; allowed: a function, or what can be called")
        if not isinstance(framework, str) or not framework:
            raise UsageError(f"NativeOperator: got framework={brief(framework)}; allowed: a name, such as 'pytorch'")
        self.function, self.framework, self.settings = function, framework, settings
        self.says_specs = specs is not None
        self._specs = specs
        self.title = str(getattr(function, "__name__", type(function).__name__))

    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """As given; see `says_specs`.

        Raises:
            Unsupported: None were given.
        """
        if self._specs is None:
            raise Unsupported(f"{self.title} says nothing of its outputs; remedy: NativeOperator(…, specs=…)")
        return self._specs(*inputs)

    def forward(self, *inputs: Array) -> Any:
        """The function's own value, of native arrays."""
        return self.function(*inputs, **self.settings)

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """The framework differentiates it.

        Raises:
            Unsupported: In any case.
        """
        raise Unsupported(
            f"{self.title} is differentiated by {self.framework}; remedy: "
            f"d5.framework({self.framework!r}).operator_executor(…)"
        )
