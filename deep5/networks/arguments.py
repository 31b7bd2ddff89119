"""Check the arguments of functions on networks before anything uses them."""

from __future__ import annotations

from typing import Any

from deep5.core import plugins
from deep5.core.arguments import is_whole, no_network
from deep5.core.errors import UsageError, brief
from deep5.core.framework import Framework
from deep5.core.network_spec import NetworkSpec
from deep5.networks.network import Network

__all__ = ["as_network", "check_network", "check_seed", "framework_of"]


def as_network(given: NetworkSpec, what: str = "executor") -> Network:
    """The network, if it is a graph; native code runs only on its own framework.

    Raises:
        UsageError: The argument is not a graph.
    """
    if not isinstance(given, Network):
        raise UsageError(no_network(given, what))
    return given


def check_network(given: Any, what: str, which: str = "the network") -> None:
    """Reject an argument that is not a network.

    Args:
        given: The argument.
        what: The function, for the message.
        which: The argument's name, for the message.

    Raises:
        UsageError: It is not a network.
    """
    if not isinstance(given, Network):
        raise UsageError(no_network(given, what, which))


def check_seed(seed: Any, what: str) -> None:
    """Reject an argument that is not a seed.

    Raises:
        UsageError: It is not a seed.
    """
    if not is_whole(seed) or not 0 <= seed < 1 << 63:
        raise UsageError(f"{what}: got seed={brief(seed)}; allowed: an integer from 0 to 2**63 - 1; remedy: seed=0")


def framework_of(given: Any, what: str) -> Framework:
    """The back-end, given by its name or as an object.

    Raises:
        UnknownName: Unknown back-end.
        MissingDependency: It is not installed.
        UsageError: The argument is neither a name nor a back-end.
    """
    if isinstance(given, str):
        found: Framework = plugins.framework(given)
        return found
    if not isinstance(given, Framework):
        raise UsageError(
            f"{what}: got framework={brief(given)}; allowed: a name, or what deep5.framework(name) gives; remedy: "
            'framework="reference"'
        )
    return given
