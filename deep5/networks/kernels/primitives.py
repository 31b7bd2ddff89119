"""`Primitives`: the functions with which composites compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from deep5.networks.window import Window

__all__ = ["Array", "Primitives"]

Array = Any
"""An array of the back-end."""


class Primitives(Protocol):
    """The array standard's functions under their names, and the following ones, which it lacks.

    Sizes may be unknown while TensorFlow traces: then `x.shape` contains `TracedExtent`, which supports arithmetic, and
    settings are arrays.

    References:
        Python array API standard, 2024.12, https://data-apis.org/array-api.
    """

    def __getattr__(self, name: str) -> Any:
        """A function, constant or dtype of the standard."""

    def table(self, function: Callable[..., Any], *numbers: Any, like: Array) -> Any:
        """function(namespace, *numbers): arrays that depend only on numbers, such as coordinates and weights.

        If all numbers are known, NumPy computes them on the host, once for the same numbers; otherwise the back-end
        computes them in float64 from arrays of shape ().

        Args:
            function: Takes a namespace of the standard and the numbers; returns an array or a tuple of arrays.
            numbers: Python numbers, hashable settings, sizes, and arrays of shape ().
            like: The arrays are placed on the device of this array; or the argument `place` of a composite.
        """

    def host(self, function: Callable[..., Any], *numbers: Any) -> Any:
        """function(*numbers): a number computed from known numbers, which a back-end does not trace."""

    def early(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """function(*arrays), computed while a back-end traces if the arrays are known then."""

    def size_of(self, x: Array) -> Any:
        """The largest number of an array, at least 1, as a size: an int, or an array where TensorFlow traces."""

    def number(self, x: Array) -> Any:
        """The only number of an array, on the host."""

    def split(self, x: Array, sizes: Sequence[Any], axis: int) -> Sequence[Array]:
        """Parts along an axis; the sizes add up to the size of the axis."""

    def sizes(self, numbers: Any, place: Any) -> Array:
        """An int64 array of a size or several, which are known before the network runs wherever sizes are."""

    def blank(self, shape: tuple[Any, ...], like: Array) -> Array:
        """Zeros of the element type and on the device of another array."""

    def wide(self, x: Array) -> Array:
        """x in float32, in float64 if it is of this type already."""

    def limits(self, dtype: Any) -> tuple[float, float]:
        """The smallest and largest number of an element type."""

    def is_floating(self, dtype: Any) -> bool:
        """Whether an element type is one of floating-point numbers."""

    def held(self, x: Array) -> Array:
        """x as a constant: no gradient passes through it."""

    def clamp(self, x: Array, low: Any = None, high: Any = None) -> Array:
        """x where it lies between two bounds, numbers or arrays; at a bound, the gradient is that of x."""

    def erf(self, x: Array) -> Array:
        """The error function."""

    def normal_distribution(self, x: Array) -> Array:
        """The distribution function of the standard normal distribution."""

    def relu(self, x: Array) -> Array:
        """x, and 0 where it is negative."""

    def elu(self, x: Array) -> Array:
        """x, and exp(x) - 1 where it is negative."""

    def rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x)."""

    def square(self, x: Array) -> Array:
        """x times x."""

    def silu(self, x: Array) -> Array:
        """x times its sigmoid."""

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x))."""

    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""

    def fmod(self, x: Array, y: Array) -> Array:
        """The remainder with the sign of x, as in C: of a finite x by an infinite y, x."""

    def complex_of(self, real: Array, imaginary: Array) -> Array:
        """Complex numbers from two arrays of float32 or float64."""

    def parts_of(self, x: Array) -> tuple[Array, Array]:
        """The real and imaginary parts of complex numbers."""

    def transformed(self, x: Array, count: Any, kind: str) -> Array:
        """A discrete Fourier transform along the last axis: `kind` is `"fft"`, `"ifft"`, `"rfft"` or `"irfft"`.

        Args:
            x: Real for `"rfft"`, otherwise complex.
            count: The length, to which x is cut or padded with zeros; for `"irfft"`, that of the result.
            kind: The name of the transform in the standard.
        """

    def bits(self, x: Array, dtype: Any) -> Array:
        """The bits of x as numbers of another type of the same size."""

    def narrowed(self, x: Array, dtype: Any, saturate: bool) -> Array:
        """ONNX's Cast to a type of few bits: with `saturate`, numbers that are too large become the largest one."""

    def integer_convolution(self, x: Array, weight: Array, window: Window, group: int) -> Array:
        """A convolution of int32 arrays that hold nine-bit numbers, in int32.

        Args:
            x: Shape (N, space …, C).
            weight: Shape (M, C / group, kernel …).
            window: The window.
            group: The number of groups of channels.

        Returns:
            Shape (N, outputs …, M).
        """

    def einsum(self, equation: str, *operands: Array) -> Array:
        """Sums of products by NumPy's notation; integers keep their lowest bits."""

    def pad(self, x: Array, pads: Sequence[tuple[Any, Any]], fill: Any) -> Array:
        """Adds elements before and after each axis, with a gradient for them; a negative number removes elements.

        Args:
            x: The array.
            pads: A pair per axis.
            fill: A number, or an array of one element.
        """

    def transposed_convolution(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        window: Window,
        group: int,
        removed: Sequence[tuple[Any, Any]],
        more: tuple[int, ...],
    ) -> Array:
        """The gradient of a convolution with respect to its image.

        Args:
            x: The image, with channels where the back-end takes them.
            weight: Shape (C, M / group, kernel …).
            bias: Shape (M,), or None.
            window: Its strides and dilations.
            group: The number of groups of channels.
            removed: How many elements to remove before and after each axis, once `more` are added after it; a negative
                number adds zeros.
            more: The elements to add.
        """

    def gathered(self, x: Array, indices: Array, axis: int, checked: bool) -> Array:
        """The slices at indices along an axis; one out of bounds gives an error if checked, or NaN."""

    def picked(self, x: Array, places: tuple[Array, ...]) -> Array:
        """x[places]: the elements, or slices, at integer coordinates along the first axes.

        A negative coordinate counts from the end. One that is out of bounds is an error; on a device that does not
        report it, the element is NaN, and no gradient passes by it unnoticed.
        """

    def placed(self, x: Array, places: tuple[Array, ...], updates: Array, how: str) -> Array:
        """x with updates at `places`, as for `picked`, combined by ONNX's reduction `how`."""

    def found(self, x: Array) -> Array:
        """The indices of the elements that are not 0, int64, shape (count, rank)."""

    def classes(self, x: Array, axis: int) -> tuple[Array, Array, Array]:
        """The unique slices along an axis in ascending order: where each is first, the number of each slice, counts."""

    def top_k(self, x: Array, count: Any, axis: int, largest: bool) -> tuple[Array, Array]:
        """The largest or smallest elements along an axis in order, and their indices; of equal ones the first."""

    def lesser(self, size: Any, other: Any) -> Any:
        """The smaller of two sizes."""

    def loop(self, condition: Callable[..., Any], body: Callable[..., Any], state: tuple[Array, ...]) -> Any:
        """The state after body(*state) has replaced it as long as condition(*state) is true."""

    def softmax(self, x: Array, axis: int) -> Array:
        """exp(x) divided by its sum along an axis."""

    def log_softmax(self, x: Array, axis: int) -> Array:
        """The logarithm of the softmax."""

    def cross_entropy(self, x: Array, label: Array) -> Array:
        """Minus the log of the softmax along the last axis at each label; an error or NaN for one out of bounds."""

    def likelihood(self, x: Array, label: Array, checked: bool) -> Array:
        """Minus the element of each label along the last axis; for one out of bounds an error if checked, or NaN."""

    def normal(self, stream: Any, shape: Any, kind: Any, place: Any, mean: float, scale: float) -> Array:
        """Random numbers of a normal distribution."""

    def uniform(self, stream: Any, shape: Any, kind: Any, place: Any, low: float, high: float) -> Array:
        """Random numbers of a uniform distribution."""

    def coins(self, stream: Any, x: Array) -> Array:
        """1, or true, with the probability x, otherwise 0."""

    def draws(self, stream: Any, logits: Array, count: int) -> Array:
        """Classes drawn with replacement from log-probabilities, up to a constant: (N, classes) to (N, count)."""

    def scan(
        self, step: Callable[..., tuple[Array, ...]], states: tuple[Array, ...], rows: tuple[Array, ...], back: bool
    ) -> tuple[tuple[Array, ...], Array]:
        """States that change along the first axis of arrays.

        Args:
            step: From the states before a step, and a tuple of that step's elements, to the states after it.
            states: The initial ones.
            rows: Arrays of equal length.
            back: Whether the last elements come first.

        Returns:
            The final states, and the first state after each step, stacked along a first axis.
        """

    def recurrent(
        self,
        cell: Callable[..., tuple[Array, ...]],
        weight: Array,
        bias: Array | None,
        states: tuple[Array, ...],
        rows: Array,
        inside: Array | None,
        *,
        apart: bool,
        back: bool,
    ) -> tuple[tuple[Array, ...], Array]:
        """A layer whose steps multiply the first state by one matrix.

        Args:
            cell: From a step's row plus the product, and the states before the step, to those after it.
            weight: The matrix, shape (hidden, gates hidden).
            bias: Added to the product, shape (gates hidden,); None: nothing.
            states: The initial ones, each (batch, hidden).
            rows: Shape (length, batch, gates hidden).
            inside: Where the states change, shape (length, batch, 1); None: everywhere. Elsewhere results are 0.
            apart: Whether the cell takes the row and the product as two arguments.
            back: Whether the last row comes first.

        Returns:
            As `scan`.
        """
