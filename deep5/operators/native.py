"""`NativeOperator`: an existing framework function as an operator, for deep5's checks and timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec

__all__ = ["NativeOperator"]


class NativeOperator(Operator):
    """A function of one framework's native arrays: `torch.nn.functional.conv2d`, a Keras layer, a JAX function.

    It runs only on that framework, which differentiates it, and is called with native arrays.

    Args:
        function: Takes native arrays, returns one or a tuple of them.
        framework: Name of the framework: `"pytorch"`.
        specs: Maps input specifications to output specifications; None: any output is valid.
        settings: Further arguments of the function, by name.

    Attributes:
        says_specs: Whether `specs` was given.
        title: The function's name.

    Raises:
        UsageError: `function` is not callable, or `framework` is not a name.

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
        """The result of the given `specs`.

        Args:
            inputs: Specifications of the inputs.

        Raises:
            Unsupported: None was given.
        """
        if self._specs is None:
            raise Unsupported(f"{self.title} does not specify its outputs; remedy: NativeOperator(…, specs=…)")
        return self._specs(*inputs)

    def forward(self, *inputs: Array) -> Any:
        """The function's result for native arrays.

        Args:
            inputs: Native arrays.
        """
        return self.function(*inputs, **self.settings)

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """Raise an error: the framework differentiates the function.

        Args:
            output_grads: Not used.
            inputs: Not used.
            outputs: Not used.
            needs: Not used.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(
            f"{self.title} is differentiated by {self.framework}; remedy: "
            f"d5.framework({self.framework!r}).operator_executor(…)"
        )
