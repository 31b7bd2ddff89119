"""`deep5 audit`: checks offline whether any result, including untrusted ones, follows the rules of measurement."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.audit.finding import Finding as Finding
    from deep5.audit.folders import Report as Report
    from deep5.audit.folders import audit as audit

__all__ = ["Finding", "Report", "audit"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'deep5.audit' has no attribute {name!r}")
    value = getattr(import_module(f"deep5.audit.{'finding' if name == 'Finding' else 'folders'}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
