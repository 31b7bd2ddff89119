"""Components of a run as its result describes them."""

from __future__ import annotations

from typing import Any

from deep5.core.canonical import canonical

__all__ = ["description_of"]


def description_of(component: Any) -> Any:
    """A component's `describe()`, or its type and its attributes with plain values; in JSON types."""
    describe = getattr(component, "describe", None)
    plain = {
        key: value
        for key, value in vars(component).items()
        if not key.startswith("_") and isinstance(value, (bool, int, float, str, type(None)))
    }
    return canonical(
        describe() if callable(describe) else {"object": type(component).__qualname__, **plain}, strict=False
    )
