"""Results on disk, as tables, and as MLPerf events; `load` reads all under a root, other names are in the modules.

>>> import tempfile
>>> import deep5 as d5
>>> folder = tempfile.TemporaryDirectory()
>>> with d5.record("mine", out=folder.name, quiet=True) as run:
...     with run.epoch():
...         with run.step(batch_size=8):
...             run.log(loss=0.5)
>>> d5.results.load(folder.name)[["recipe", "status", "metric.training_loss"]].to_dict("records")
[{'recipe': 'mine', 'status': 'success', 'metric.training_loss': 0.5}]
>>> folder.cleanup()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.results.frame import load as load

__all__ = ["load"]

if not TYPE_CHECKING:  # a type checker reports a name that is missing

    def __getattr__(name: str) -> Any:
        if name != "load":
            raise AttributeError(f"module 'deep5.results' has no attribute {name!r}")
        value = import_module("deep5.results.frame").load
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
