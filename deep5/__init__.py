"""deep5: a framework for deep-learning frameworks to live in.

Every public name loads when it is first used, so that `import deep5` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5 import networks as networks
    from deep5.backend import Framework as Framework
    from deep5.backend import Support as Support
    from deep5.communicator import Communicator as Communicator
    from deep5.communicator import SingleRank as SingleRank
    from deep5.errors import Deep5Error as Deep5Error
    from deep5.errors import OperatorError as OperatorError
    from deep5.errors import ShapeError as ShapeError
    from deep5.errors import Unsupported as Unsupported
    from deep5.errors import UsageError as UsageError
    from deep5.events import Event as Event
    from deep5.events import StepInfo as StepInfo
    from deep5.events import StopTraining as StopTraining
    from deep5.executors import GraphExecutor as GraphExecutor
    from deep5.executors import OperatorExecutor as OperatorExecutor
    from deep5.executors import ParameterGroup as ParameterGroup
    from deep5.executors import StepOptimizer as StepOptimizer
    from deep5.executors import TrainStep as TrainStep
    from deep5.metric import Goal as Goal
    from deep5.metric import Metric as Metric
    from deep5.metric import Observer as Observer
    from deep5.metric import Sample as Sample
    from deep5.metrics.accuracy import TestAccuracy as TestAccuracy
    from deep5.metrics.accuracy import TimeToAccuracy as TimeToAccuracy
    from deep5.metrics.loss import TrainingLoss as TrainingLoss
    from deep5.metrics.memory import PeakMemory as PeakMemory
    from deep5.metrics.operator_time import BareRatio as BareRatio
    from deep5.metrics.operator_time import OperatorCost as OperatorCost
    from deep5.metrics.operator_time import OperatorCoverage as OperatorCoverage
    from deep5.metrics.operator_time import OperatorTime as OperatorTime
    from deep5.metrics.overhead import Overhead as Overhead
    from deep5.metrics.overhead import Slowdown as Slowdown
    from deep5.metrics.time import StepLatency as StepLatency
    from deep5.metrics.time import Throughput as Throughput
    from deep5.metrics.time import WallClockTime as WallClockTime
    from deep5.networks.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.check import check_executor as check_executor
    from deep5.networks.network import Network as Network
    from deep5.networks.onnx_operator import ONNXOperator as ONNXOperator
    from deep5.operators.check import check_forward as check_forward
    from deep5.operators.check import check_gradient as check_gradient
    from deep5.operators.cpp import CppOperator as CppOperator
    from deep5.operators.native import NativeOperator as NativeOperator
    from deep5.operators.operator import Operator as Operator
    from deep5.operators.registry import register_operator as register_operator
    from deep5.plugins import framework as framework
    from deep5.run import run_recipe as run_recipe
    from deep5.tensors import CPUDevice as CPUDevice
    from deep5.tensors import Device as Device
    from deep5.tensors import GPUDevice as GPUDevice
    from deep5.tensors import TensorSpec as TensorSpec
    from deep5.tensors import array_namespace as array_namespace
    from deep5.tensors import to_numpy as to_numpy
    from deep5.training import datasets as datasets
    from deep5.training.check import check_optimizer as check_optimizer
    from deep5.training.dataset import ArrayDataset as ArrayDataset
    from deep5.training.dataset import Dataset as Dataset
    from deep5.training.dataset import Splits as Splits
    from deep5.training.kernel import bind_rule as bind_rule
    from deep5.training.loggers import CSVLogger as CSVLogger
    from deep5.training.progress import ProgressBar as ProgressBar
    from deep5.training.rule import ThreeStepOptimizer as ThreeStepOptimizer
    from deep5.training.rule import UpdateRule as UpdateRule
    from deep5.training.rule import UpdateRuleOptimizer as UpdateRuleOptimizer
    from deep5.training.rules.accelegrad import AcceleGrad as AcceleGrad
    from deep5.training.rules.adam import Adam as Adam
    from deep5.training.rules.lars import LARS as LARS
    from deep5.training.rules.momentum import Momentum as Momentum
    from deep5.training.rules.sgd import SGD as SGD
    from deep5.training.sampler import OrderedSampler as OrderedSampler
    from deep5.training.sampler import Sampler as Sampler
    from deep5.training.sampler import ShuffleSampler as ShuffleSampler
    from deep5.training.trainer import Trainer as Trainer
    from deep5.training.trajectory import prove_same_trajectory as prove_same_trajectory

__version__ = "0.1.0"

_CORE = {
    "Deep5Error": "errors",
    "OperatorError": "errors",
    "ShapeError": "errors",
    "Unsupported": "errors",
    "UsageError": "errors",
    "Event": "events",
    "StepInfo": "events",
    "StopTraining": "events",
    "Framework": "backend",
    "GraphExecutor": "executors",
    "OperatorExecutor": "executors",
    "ParameterGroup": "executors",
    "StepOptimizer": "executors",
    "Support": "backend",
    "TrainStep": "executors",
    "Goal": "metric",
    "Metric": "metric",
    "Observer": "metric",
    "Sample": "metric",
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
    "CppOperator": "operators.cpp",
    "check_forward": "operators.check",
    "check_gradient": "operators.check",
    "NativeOperator": "operators.native",
    "ONNXOperator": "networks.onnx_operator",
    "Operator": "operators.operator",
    "register_operator": "operators.registry",
    # Level 1
    "Network": "networks.network",
    "NetworkBuilder": "networks.builder",
    "networks": "networks",
    "check_executor": "networks.check",
    # Level 2
    "ArrayDataset": "training.dataset",
    "Dataset": "training.dataset",
    "Splits": "training.dataset",
    "datasets": "training.datasets",
    "OrderedSampler": "training.sampler",
    "Sampler": "training.sampler",
    "ShuffleSampler": "training.sampler",
    "ThreeStepOptimizer": "training.rule",
    "UpdateRule": "training.rule",
    "UpdateRuleOptimizer": "training.rule",
    "bind_rule": "training.kernel",
    "check_optimizer": "training.check",
    "prove_same_trajectory": "training.trajectory",
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
    "BareRatio": "metrics.operator_time",
    "OperatorCost": "metrics.operator_time",
    "OperatorCoverage": "metrics.operator_time",
    "OperatorTime": "metrics.operator_time",
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
_PACKAGES = ("datasets", "networks")
_HOME = {**_CORE, **_LEVELS, **_METRICS}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.errors import suggestion

        raise AttributeError(f"module 'deep5' has no attribute {name!r}{suggestion(name, __all__)}")
    home = import_module(f"deep5.{_HOME[name]}")
    value = home if name in _PACKAGES else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
