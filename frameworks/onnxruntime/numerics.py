"""What sessions on a graphics processor may do to the bits, and the base of the framework that holds it."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from deep5.training.engine_framework import EngineFramework

__all__ = ["EXACT", "Numerics", "NumericsFramework"]


class Numerics(NamedTuple):
    """What sessions on a graphics processor may do to the bits; see `Framework.set_numerics`."""

    deterministic: bool = True
    tf32: bool = False


EXACT = Numerics()


class NumericsFramework(EngineFramework):
    """Base of `ONNXRuntime`: what its executors read of it while it is in use.

    Attributes:
        numerics: The process's, as the number of threads is.
    """

    numerics: ClassVar[Numerics] = EXACT
