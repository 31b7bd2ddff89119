"""Numerical settings of GPU sessions, and the base of the framework that holds them."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from deep5.training.engine_framework import EngineFramework

__all__ = ["EXACT", "Numerics", "NumericsFramework"]


class Numerics(NamedTuple):
    """Numerical settings of GPU sessions; see `Framework.set_numerics`."""

    deterministic: bool = True
    tf32: bool = False


EXACT = Numerics()


class NumericsFramework(EngineFramework):
    """Base of `ONNXRuntime`: the state that its executors read.

    Attributes:
        numerics: Global to the process, like the number of threads.
    """

    numerics: ClassVar[Numerics] = EXACT
