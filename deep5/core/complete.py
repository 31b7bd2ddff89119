"""`check_complete`: an interface's subclass that lacks something is refused when an object of it is made."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import UsageError

__all__ = ["PartialClassError", "check_complete"]


class PartialClassError(UsageError, TypeError):
    """A class does not define all that its interface requires; also a `TypeError`, as Python's own for such a class."""


def check_complete(
    made: type[Any], interface: type[Any], attributes: tuple[str, ...] = (), *, enough: tuple[str, ...] = ()
) -> None:
    """Check that a class defines every abstract method of its bases, and the interface's class attributes.

    Call it from the interface's `__new__`: Python's own check names methods only.

    Args:
        made: The class of which an object is being made.
        interface: The interface, for the message.
        attributes: The class attributes that it requires.
        enough: Methods from which the others are derived.

    Raises:
        PartialClassError: Something is missing; the message names all of it.
    """
    missing = [name for name in attributes if not hasattr(made, name)]
    missing += sorted(getattr(made, "__abstractmethods__", ()))
    if missing:
        few = [name for name in enough if name in missing]
        alternative = f", or only {' and '.join(few)}: deep5 derives the rest" if 0 < len(few) < len(missing) else ""
        raise PartialClassError(
            f"{made.__qualname__} does not define {', '.join(missing)}; allowed: an object of a class with all that "
            f"{interface.__name__} requires; remedy: define {'it' if len(missing) == 1 else 'them'} in "
            f"{made.__qualname__}{alternative}"
        )
