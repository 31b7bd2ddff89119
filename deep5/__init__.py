"""deep5: a framework for deep-learning frameworks to live in.

Every public name loads when it is first used, so that `import deep5` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5 import networks as networks
    from deep5.errors import Deep5Error as Deep5Error
    from deep5.events import Event as Event
    from deep5.events import StepInfo as StepInfo
    from deep5.events import StopTraining as StopTraining
    from deep5.backend import Framework as Framework
    from deep5.backend import GraphExecutor as GraphExecutor
    from deep5.backend import ParameterGroup as ParameterGroup
    from deep5.backend import StepOptimizer as StepOptimizer
    from deep5.backend import Support as Support
    from deep5.backend import TrainStep as TrainStep
    from deep5.metric import Goal as Goal
    from deep5.metric import Metric as Metric
    from deep5.networks.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.network import Network as Network
    from deep5.operators.operator import Operator as Operator
    from deep5.plugins import framework as framework
    from deep5.run import run_recipe as run_recipe
    from deep5.tensors import CPUDevice as CPUDevice
    from deep5.tensors import Device as Device
    from deep5.tensors import GPUDevice as GPUDevice
    from deep5.tensors import TensorSpec as TensorSpec
    from deep5.tensors import array_namespace as array_namespace
    from deep5.tensors import to_numpy as to_numpy

__version__ = "0.1.0"

_CORE = {
    "Deep5Error": "errors",
    "Event": "events",
    "StepInfo": "events",
    "StopTraining": "events",
    "Framework": "backend",
    "GraphExecutor": "backend",
    "ParameterGroup": "backend",
    "StepOptimizer": "backend",
    "Support": "backend",
    "TrainStep": "backend",
    "Goal": "metric",
    "Metric": "metric",
    "framework": "plugins",
    "run_recipe": "run",
    "CPUDevice": "tensors",
    "Device": "tensors",
    "GPUDevice": "tensors",
    "TensorSpec": "tensors",
    "array_namespace": "tensors",
    "to_numpy": "tensors",
}
_LEVELS = {
    # Level 0
    "Operator": "operators.operator",
    # Level 1
    "Network": "networks.network",
    "NetworkBuilder": "networks.builder",
    "networks": "networks",
    "check_executor": "networks.check",
    # Level 2
    "Dataset": "training.dataset",
    "OrderedSampler": "training.sampler",
    "Sampler": "training.sampler",
    "ShuffleSampler": "training.sampler",
    "ThreeStepOptimizer": "training.rule",
    "UpdateRule": "training.rule",
    "UpdateRuleOptimizer": "training.rule",
    "bind_rule": "training.kernel",
    "check_optimizer": "training.check",
    "Trainer": "training.trainer",
    "AcceleGrad": "training.rules.accelegrad",
    "Adam": "training.rules.adam",
    "LARS": "training.rules.lars",
    "Momentum": "training.rules.momentum",
    "SGD": "training.rules.sgd",
    "CSVLogger": "training.loggers",
    "ProgressBar": "training.progress",
    # Level 3
    "Communicator": "communicator",
    "SingleRank": "communicator",
}
_METRICS = {
    "Overhead": "metrics.overhead",
    "PeakMemory": "metrics.memory",
    "Slowdown": "metrics.overhead",
    "StepLatency": "metrics.time",
    "TestAccuracy": "metrics.accuracy",
    "Throughput": "metrics.time",
    "TimeToAccuracy": "metrics.accuracy",
    "TrainingLoss": "metrics.loss",
    "WallClockTime": "metrics.time",
}
_HOME = {**_CORE, **_LEVELS, **_METRICS}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.errors import suggestion

        raise AttributeError(f"module 'deep5' has no attribute {name!r}{suggestion(name, __all__)}")
    home = import_module(f"deep5.{_HOME[name]}")
    value = home if name == "networks" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
