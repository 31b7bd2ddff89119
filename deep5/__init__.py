"""deep5: a framework for deep-learning frameworks to live in.

Every public name loads when it is first used, so that `import deep5` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deep5.core.former_paths import IMPORTABLE, keep_importable
from deep5.core.version import __version__ as __version__

if TYPE_CHECKING:
    from deep5 import networks as networks
    from deep5 import results as results
    from deep5.compare.driver import run_comparison as run_comparison
    from deep5.core.communicator import Communicator as Communicator
    from deep5.core.communicator import SingleRank as SingleRank
    from deep5.core.errors import Deep5Error as Deep5Error
    from deep5.core.errors import OperatorError as OperatorError
    from deep5.core.errors import ShapeError as ShapeError
    from deep5.core.errors import Unsupported as Unsupported
    from deep5.core.errors import UsageError as UsageError
    from deep5.core.events import Event as Event
    from deep5.core.events import StepInfo as StepInfo
    from deep5.core.events import StopTraining as StopTraining
    from deep5.core.executors import OperatorExecutor as OperatorExecutor
    from deep5.core.executors import ParameterGroup as ParameterGroup
    from deep5.core.executors import StepOptimizer as StepOptimizer
    from deep5.core.executors import TrainStep as TrainStep
    from deep5.core.framework import Framework as Framework
    from deep5.core.framework import Support as Support
    from deep5.core.metric import Goal as Goal
    from deep5.core.metric import Metric as Metric
    from deep5.core.metric import Observer as Observer
    from deep5.core.metric import Sample as Sample
    from deep5.core.operator import Operator as Operator
    from deep5.core.plugins import framework as framework
    from deep5.core.seeds import generator as generator
    from deep5.core.tensors import CPUDevice as CPUDevice
    from deep5.core.tensors import Device as Device
    from deep5.core.tensors import GPUDevice as GPUDevice
    from deep5.core.tensors import TensorSpec as TensorSpec
    from deep5.core.tensors import array_namespace as array_namespace
    from deep5.core.tensors import to_numpy as to_numpy
    from deep5.core.time_limit import time_limit as time_limit
    from deep5.distributed.compression.compression import Compression as Compression
    from deep5.distributed.compression.deep_gradient import DeepGradientCompression as DeepGradientCompression
    from deep5.distributed.compression.half_precision import HalfPrecision as HalfPrecision
    from deep5.distributed.compression.one_bit import OneBit as OneBit
    from deep5.distributed.compression.qsgd import QSGD as QSGD
    from deep5.distributed.compression.random_k import RandomKSparsification as RandomKSparsification
    from deep5.distributed.compression.sparse_all_reduce import SparseAllReduce as SparseAllReduce
    from deep5.distributed.compression.terngrad import TernGrad as TernGrad
    from deep5.distributed.compression.top_k import TopKSparsification as TopKSparsification
    from deep5.distributed.schemes.all_reduce import AllReduce as AllReduce
    from deep5.distributed.schemes.asynchronous import AsynchronousParameterServer as AsynchronousParameterServer
    from deep5.distributed.schemes.base import DistributedOptimizer as DistributedOptimizer
    from deep5.distributed.schemes.elastic_averaging import ElasticAveraging as ElasticAveraging
    from deep5.distributed.schemes.gossip import Gossip as Gossip
    from deep5.distributed.schemes.hierarchical import Hierarchical as Hierarchical
    from deep5.distributed.schemes.local_sgd import LocalSGD as LocalSGD
    from deep5.distributed.schemes.neighbourhood import Neighbourhood as Neighbourhood
    from deep5.distributed.schemes.parameter_server import ParameterServer as ParameterServer
    from deep5.distributed.schemes.stale_synchronous import StaleSynchronous as StaleSynchronous
    from deep5.distributed.sharding import ShardedSampler as ShardedSampler
    from deep5.distributed.slow_rank import SlowRank as SlowRank
    from deep5.generation.completion import Completion as Completion
    from deep5.generation.completion import TokenEvent as TokenEvent
    from deep5.generation.generator import TextGenerator as TextGenerator
    from deep5.generation.request import GenerationRequest as GenerationRequest
    from deep5.generation.summary import GenerationSummary as GenerationSummary
    from deep5.generation.tokenizer import VocabularyTokenizer as VocabularyTokenizer
    from deep5.metrics.accuracy import EpochsToAccuracy as EpochsToAccuracy
    from deep5.metrics.accuracy import TestAccuracy as TestAccuracy
    from deep5.metrics.accuracy import TimeToAccuracy as TimeToAccuracy
    from deep5.metrics.breakdown import TimeBreakdown as TimeBreakdown
    from deep5.metrics.collective import BusBandwidth as BusBandwidth
    from deep5.metrics.collective import CollectiveLatency as CollectiveLatency
    from deep5.metrics.collective import RightResults as RightResults
    from deep5.metrics.communication import CommunicationOverlap as CommunicationOverlap
    from deep5.metrics.communication import CommunicationShare as CommunicationShare
    from deep5.metrics.communication import CommunicationVolume as CommunicationVolume
    from deep5.metrics.communication import LoadImbalance as LoadImbalance
    from deep5.metrics.confusion import F1 as F1
    from deep5.metrics.confusion import ConfusionMatrix as ConfusionMatrix
    from deep5.metrics.cost import Cost as Cost
    from deep5.metrics.decoded import BLEU as BLEU
    from deep5.metrics.decoded import ChrF as ChrF
    from deep5.metrics.decoded import PhonemeErrorRate as PhonemeErrorRate
    from deep5.metrics.decoded import WordErrorRate as WordErrorRate
    from deep5.metrics.energy import Energy as Energy
    from deep5.metrics.frechet import FrechetDistance as FrechetDistance
    from deep5.metrics.generalisation import FinalTestAccuracy as FinalTestAccuracy
    from deep5.metrics.generalisation import GeneralisationGap as GeneralisationGap
    from deep5.metrics.label_errors import LabelErrorRate as LabelErrorRate
    from deep5.metrics.likelihood import BitsPerByte as BitsPerByte
    from deep5.metrics.likelihood import Perplexity as Perplexity
    from deep5.metrics.loss import TestLoss as TestLoss
    from deep5.metrics.loss import TrainingLoss as TrainingLoss
    from deep5.metrics.mean_average_precision import MeanAveragePrecision as MeanAveragePrecision
    from deep5.metrics.memory import PeakMemory as PeakMemory
    from deep5.metrics.operator_time import BareRatio as BareRatio
    from deep5.metrics.operator_time import OperatorCost as OperatorCost
    from deep5.metrics.operator_time import OperatorCoverage as OperatorCoverage
    from deep5.metrics.operator_time import OperatorTime as OperatorTime
    from deep5.metrics.overhead import Overhead as Overhead
    from deep5.metrics.overhead import Slowdown as Slowdown
    from deep5.metrics.repeatability import Repeatability as Repeatability
    from deep5.metrics.returns import MeanReturn as MeanReturn
    from deep5.metrics.roc_auc import ROCAUC as ROCAUC
    from deep5.metrics.sampling import SamplingBias as SamplingBias
    from deep5.metrics.serving import FailedRequests as FailedRequests
    from deep5.metrics.serving import Goodput as Goodput
    from deep5.metrics.serving import HighestRate as HighestRate
    from deep5.metrics.serving import LatencyPercentile as LatencyPercentile
    from deep5.metrics.serving import RequestThroughput as RequestThroughput
    from deep5.metrics.staleness import Staleness as Staleness
    from deep5.metrics.time import StepLatency as StepLatency
    from deep5.metrics.time import Throughput as Throughput
    from deep5.metrics.time import WallClockTime as WallClockTime
    from deep5.metrics.top_k import TopK as TopK
    from deep5.metrics.training_accuracy import TrainingAccuracy as TrainingAccuracy
    from deep5.metrics.utilisation import Utilisation as Utilisation
    from deep5.networks.check import check_executor as check_executor
    from deep5.networks.edit.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.network import Network as Network
    from deep5.networks.onnx_operator import ONNXOperator as ONNXOperator
    from deep5.networks.transforms.equivalence import Transformation as Transformation
    from deep5.networks.transforms.equivalence import check_equivalence as check_equivalence
    from deep5.networks.transforms.equivalence import check_transformation as check_transformation
    from deep5.operators.check import check_forward as check_forward
    from deep5.operators.check import check_gradient as check_gradient
    from deep5.operators.cpp import CppOperator as CppOperator
    from deep5.operators.native import NativeOperator as NativeOperator
    from deep5.operators.registry import register_operator as register_operator
    from deep5.recipe.register import register as register
    from deep5.recorder.recorder import record as record
    from deep5.run.program import run_recipe as run_recipe
    from deep5.training import datasets as datasets
    from deep5.training.alternating import Alternating as Alternating
    from deep5.training.alternating import Turn as Turn
    from deep5.training.batch_sizes import GrowingBatches as GrowingBatches
    from deep5.training.batch_source import BatchSource as BatchSource
    from deep5.training.bucket_sampler import BucketSampler as BucketSampler
    from deep5.training.check import check_optimizer as check_optimizer
    from deep5.training.checkpointer import Checkpointer as Checkpointer
    from deep5.training.dataset import ArrayDataset as ArrayDataset
    from deep5.training.dataset import Dataset as Dataset
    from deep5.training.dataset import Splits as Splits
    from deep5.training.dataset import StreamDataset as StreamDataset
    from deep5.training.datasets.coco_writer import write_coco as write_coco
    from deep5.training.derived_executor import GraphExecutor as GraphExecutor
    from deep5.training.detection.targets import DrawCenters as DrawCenters
    from deep5.training.detection.targets import MatchAnchors as MatchAnchors
    from deep5.training.divergence import StopOnNaN as StopOnNaN
    from deep5.training.engine_framework import EngineFramework as EngineFramework
    from deep5.training.generated import GeneratorDataset as GeneratorDataset
    from deep5.training.generation.diffusion import AddNoise as AddNoise
    from deep5.training.generation.latent import DrawLatent as DrawLatent
    from deep5.training.gradient_executor import GradientExecutor as GradientExecutor
    from deep5.training.kernel import bind_rule as bind_rule
    from deep5.training.lbfgs import LBFGS as LBFGS
    from deep5.training.loaders import from_dataloader as from_dataloader
    from deep5.training.loaders import from_tf_data as from_tf_data
    from deep5.training.loggers import CSVLogger as CSVLogger
    from deep5.training.onnx_engine import ONNXEngine as ONNXEngine
    from deep5.training.operator_executor import EngineOperatorExecutor as EngineOperatorExecutor
    from deep5.training.optimizer import RuleOptimizer as RuleOptimizer
    from deep5.training.pipeline import GradientPipeline as GradientPipeline
    from deep5.training.prefetch import Prefetched as Prefetched
    from deep5.training.progress import ProgressBar as ProgressBar
    from deep5.training.reinforcement.environment import Environment as Environment
    from deep5.training.reinforcement.episodes import EpisodeSampler as EpisodeSampler
    from deep5.training.reinforcement.replay import ReplaySampler as ReplaySampler
    from deep5.training.rule import ThreeStepOptimizer as ThreeStepOptimizer
    from deep5.training.rule import UpdateRule as UpdateRule
    from deep5.training.rule import UpdateRuleOptimizer as UpdateRuleOptimizer
    from deep5.training.rules.accelegrad import AcceleGrad as AcceleGrad
    from deep5.training.rules.adadelta import AdaDelta as AdaDelta
    from deep5.training.rules.adafactor import Adafactor as Adafactor
    from deep5.training.rules.adagrad import AdaGrad as AdaGrad
    from deep5.training.rules.adam import Adam as Adam
    from deep5.training.rules.adamw import AdamW as AdamW
    from deep5.training.rules.amsgrad import AMSGrad as AMSGrad
    from deep5.training.rules.averaged_sgd import AveragedSGD as AveragedSGD
    from deep5.training.rules.lamb import LAMB as LAMB
    from deep5.training.rules.lars import LARS as LARS
    from deep5.training.rules.lion import Lion as Lion
    from deep5.training.rules.momentum import Momentum as Momentum
    from deep5.training.rules.muon import Muon as Muon
    from deep5.training.rules.nadam import Nadam as Nadam
    from deep5.training.rules.nesterov import Nesterov as Nesterov
    from deep5.training.rules.rmsprop import RMSProp as RMSProp
    from deep5.training.rules.sgd import SGD as SGD
    from deep5.training.rules.shampoo import Shampoo as Shampoo
    from deep5.training.sag import SAG as SAG
    from deep5.training.sampler import OrderedSampler as OrderedSampler
    from deep5.training.sampler import Sampler as Sampler
    from deep5.training.sampler import ShuffleSampler as ShuffleSampler
    from deep5.training.schedules.cosine import Cosine as Cosine
    from deep5.training.schedules.decay import Constant as Constant
    from deep5.training.schedules.decay import Exponential as Exponential
    from deep5.training.schedules.decay import Piecewise as Piecewise
    from deep5.training.schedules.decay import Polynomial as Polynomial
    from deep5.training.schedules.decay import StepDecay as StepDecay
    from deep5.training.schedules.linear_scaling import LinearScaling as LinearScaling
    from deep5.training.schedules.one_cycle import OneCycle as OneCycle
    from deep5.training.schedules.plan import Plan as Plan
    from deep5.training.schedules.schedule import Schedule as Schedule
    from deep5.training.schedules.scheduled import Scheduled as Scheduled
    from deep5.training.schedules.warm_up import WarmUp as WarmUp
    from deep5.training.sequences import SequenceDataset as SequenceDataset
    from deep5.training.stopping import EarlyStopping as EarlyStopping
    from deep5.training.stopping import StopAfter as StopAfter
    from deep5.training.stopping import StopAtAccuracy as StopAtAccuracy
    from deep5.training.stream_sampler import StreamSampler as StreamSampler
    from deep5.training.tensorboard_logger import TensorBoardLogger as TensorBoardLogger
    from deep5.training.trainer import Trainer as Trainer
    from deep5.training.trajectory import prove_same_trajectory as prove_same_trajectory
    from deep5.training.transforms.crop import CenterCrop as CenterCrop
    from deep5.training.transforms.crop import RandomCrop as RandomCrop
    from deep5.training.transforms.cutout import Cutout as Cutout
    from deep5.training.transforms.flip import Flip as Flip
    from deep5.training.transforms.normalise import Cast as Cast
    from deep5.training.transforms.normalise import Normalise as Normalise
    from deep5.training.transforms.resize import RandomResizedCrop as RandomResizedCrop
    from deep5.training.transforms.resize import Resize as Resize
    from deep5.training.transforms.transform import RandomTransform as RandomTransform
    from deep5.training.transforms.transform import Transform as Transform
    from deep5.training.weighted_sampler import WeightedSampler as WeightedSampler

keep_importable()

_CORE = {
    "Deep5Error": "core.errors",
    "OperatorError": "core.errors",
    "ShapeError": "core.errors",
    "Unsupported": "core.errors",
    "UsageError": "core.errors",
    "Event": "core.events",
    "StepInfo": "core.events",
    "generator": "core.seeds",
    "StopTraining": "core.events",
    "Framework": "core.framework",
    "OperatorExecutor": "core.executors",
    "GradientPipeline": "training.pipeline",
    "ParameterGroup": "core.executors",
    "RuleOptimizer": "training.optimizer",
    "StepOptimizer": "core.executors",
    "Support": "core.framework",
    "TrainStep": "core.executors",
    "Goal": "core.metric",
    "Metric": "core.metric",
    "Observer": "core.metric",
    "Sample": "core.metric",
    "framework": "core.plugins",
    "register": "recipe.register",
    "results": "results",
    "record": "recorder.recorder",
    "run_recipe": "run.program",
    "run_comparison": "compare.driver",
    "CPUDevice": "core.tensors",
    "Device": "core.tensors",
    "GPUDevice": "core.tensors",
    "TensorSpec": "core.tensors",
    "array_namespace": "core.tensors",
    "to_numpy": "core.tensors",
    "time_limit": "core.time_limit",
}
_LEVELS = {
    # Level 0
    "CppOperator": "operators.cpp",
    "check_forward": "operators.check",
    "check_gradient": "operators.check",
    "NativeOperator": "operators.native",
    "ONNXOperator": "networks.onnx_operator",
    "Operator": "core.operator",
    "register_operator": "operators.registry",
    # Level 1
    "Network": "networks.network",
    "NetworkBuilder": "networks.edit.builder",
    "networks": "networks",
    "check_executor": "networks.check",
    "Transformation": "networks.transforms.equivalence",
    "check_equivalence": "networks.transforms.equivalence",
    "check_transformation": "networks.transforms.equivalence",
    # Level 2
    "ArrayDataset": "training.dataset",
    "Dataset": "training.dataset",
    "Splits": "training.dataset",
    "StreamDataset": "training.dataset",
    "GeneratorDataset": "training.generated",
    "datasets": "training.datasets",
    "write_coco": "training.datasets.coco_writer",
    "BatchSource": "training.batch_source",
    "EngineFramework": "training.engine_framework",
    "EngineOperatorExecutor": "training.operator_executor",
    "GradientExecutor": "training.gradient_executor",
    "GraphExecutor": "training.derived_executor",
    "ONNXEngine": "training.onnx_engine",
    "GrowingBatches": "training.batch_sizes",
    "BucketSampler": "training.bucket_sampler",
    "WeightedSampler": "training.weighted_sampler",
    "StreamSampler": "training.stream_sampler",
    "SequenceDataset": "training.sequences",
    "Prefetched": "training.prefetch",
    "from_dataloader": "training.loaders",
    "from_tf_data": "training.loaders",
    "AddNoise": "training.generation.diffusion",
    "CenterCrop": "training.transforms.crop",
    "RandomCrop": "training.transforms.crop",
    "Cutout": "training.transforms.cutout",
    "DrawLatent": "training.generation.latent",
    "DrawCenters": "training.detection.targets",
    "Flip": "training.transforms.flip",
    "MatchAnchors": "training.detection.targets",
    "Cast": "training.transforms.normalise",
    "Normalise": "training.transforms.normalise",
    "RandomResizedCrop": "training.transforms.resize",
    "Resize": "training.transforms.resize",
    "RandomTransform": "training.transforms.transform",
    "Transform": "training.transforms.transform",
    "OrderedSampler": "training.sampler",
    "Sampler": "training.sampler",
    "ShuffleSampler": "training.sampler",
    "Environment": "training.reinforcement.environment",
    "EpisodeSampler": "training.reinforcement.episodes",
    "ReplaySampler": "training.reinforcement.replay",
    "ThreeStepOptimizer": "training.rule",
    "UpdateRule": "training.rule",
    "UpdateRuleOptimizer": "training.rule",
    "bind_rule": "training.kernel",
    "check_optimizer": "training.check",
    "prove_same_trajectory": "training.trajectory",
    "Trainer": "training.trainer",
    "Alternating": "training.alternating",
    "Turn": "training.alternating",
    "AcceleGrad": "training.rules.accelegrad",
    "AdaDelta": "training.rules.adadelta",
    "Adafactor": "training.rules.adafactor",
    "AdaGrad": "training.rules.adagrad",
    "Adam": "training.rules.adam",
    "AdamW": "training.rules.adamw",
    "AMSGrad": "training.rules.amsgrad",
    "AveragedSGD": "training.rules.averaged_sgd",
    "LAMB": "training.rules.lamb",
    "LARS": "training.rules.lars",
    "Lion": "training.rules.lion",
    "Momentum": "training.rules.momentum",
    "Muon": "training.rules.muon",
    "Nadam": "training.rules.nadam",
    "Nesterov": "training.rules.nesterov",
    "RMSProp": "training.rules.rmsprop",
    "SGD": "training.rules.sgd",
    "Shampoo": "training.rules.shampoo",
    "LBFGS": "training.lbfgs",
    "SAG": "training.sag",
    "Checkpointer": "training.checkpointer",
    "CSVLogger": "training.loggers",
    "ProgressBar": "training.progress",
    "Constant": "training.schedules.decay",
    "Cosine": "training.schedules.cosine",
    "Exponential": "training.schedules.decay",
    "LinearScaling": "training.schedules.linear_scaling",
    "OneCycle": "training.schedules.one_cycle",
    "Piecewise": "training.schedules.decay",
    "Plan": "training.schedules.plan",
    "Polynomial": "training.schedules.decay",
    "Schedule": "training.schedules.schedule",
    "Scheduled": "training.schedules.scheduled",
    "StepDecay": "training.schedules.decay",
    "WarmUp": "training.schedules.warm_up",
    "EarlyStopping": "training.stopping",
    "StopAfter": "training.stopping",
    "StopAtAccuracy": "training.stopping",
    "StopOnNaN": "training.divergence",
    "TensorBoardLogger": "training.tensorboard_logger",
    "TextGenerator": "generation.generator",
    "GenerationRequest": "generation.request",
    "Completion": "generation.completion",
    "TokenEvent": "generation.completion",
    "GenerationSummary": "generation.summary",
    "VocabularyTokenizer": "generation.tokenizer",
    # Level 3
    "Communicator": "core.communicator",
    "SingleRank": "core.communicator",
    "AllReduce": "distributed.schemes.all_reduce",
    "Compression": "distributed.compression.compression",
    "DeepGradientCompression": "distributed.compression.deep_gradient",
    "DistributedOptimizer": "distributed.schemes.base",
    "HalfPrecision": "distributed.compression.half_precision",
    "OneBit": "distributed.compression.one_bit",
    "QSGD": "distributed.compression.qsgd",
    "RandomKSparsification": "distributed.compression.random_k",
    "SparseAllReduce": "distributed.compression.sparse_all_reduce",
    "TernGrad": "distributed.compression.terngrad",
    "TopKSparsification": "distributed.compression.top_k",
    "ElasticAveraging": "distributed.schemes.elastic_averaging",
    "Gossip": "distributed.schemes.gossip",
    "Hierarchical": "distributed.schemes.hierarchical",
    "LocalSGD": "distributed.schemes.local_sgd",
    "Neighbourhood": "distributed.schemes.neighbourhood",
    "AsynchronousParameterServer": "distributed.schemes.asynchronous",
    "ParameterServer": "distributed.schemes.parameter_server",
    "StaleSynchronous": "distributed.schemes.stale_synchronous",
    "ShardedSampler": "distributed.sharding",
    "SlowRank": "distributed.slow_rank",
}
_METRICS = {
    "BLEU": "metrics.decoded",
    "BareRatio": "metrics.operator_time",
    "BitsPerByte": "metrics.likelihood",
    "BusBandwidth": "metrics.collective",
    "ChrF": "metrics.decoded",
    "CollectiveLatency": "metrics.collective",
    "CommunicationOverlap": "metrics.communication",
    "CommunicationShare": "metrics.communication",
    "CommunicationVolume": "metrics.communication",
    "ConfusionMatrix": "metrics.confusion",
    "Cost": "metrics.cost",
    "Energy": "metrics.energy",
    "EpochsToAccuracy": "metrics.accuracy",
    "F1": "metrics.confusion",
    "FailedRequests": "metrics.serving",
    "FinalTestAccuracy": "metrics.generalisation",
    "GeneralisationGap": "metrics.generalisation",
    "Goodput": "metrics.serving",
    "HighestRate": "metrics.serving",
    "LabelErrorRate": "metrics.label_errors",
    "LatencyPercentile": "metrics.serving",
    "LoadImbalance": "metrics.communication",
    "OperatorCost": "metrics.operator_time",
    "OperatorCoverage": "metrics.operator_time",
    "OperatorTime": "metrics.operator_time",
    "Overhead": "metrics.overhead",
    "FrechetDistance": "metrics.frechet",
    "MeanAveragePrecision": "metrics.mean_average_precision",
    "MeanReturn": "metrics.returns",
    "PeakMemory": "metrics.memory",
    "PhonemeErrorRate": "metrics.decoded",
    "Perplexity": "metrics.likelihood",
    "Repeatability": "metrics.repeatability",
    "ROCAUC": "metrics.roc_auc",
    "RequestThroughput": "metrics.serving",
    "RightResults": "metrics.collective",
    "SamplingBias": "metrics.sampling",
    "Slowdown": "metrics.overhead",
    "Staleness": "metrics.staleness",
    "StepLatency": "metrics.time",
    "TestAccuracy": "metrics.accuracy",
    "TestLoss": "metrics.loss",
    "Throughput": "metrics.time",
    "TimeBreakdown": "metrics.breakdown",
    "TimeToAccuracy": "metrics.accuracy",
    "TopK": "metrics.top_k",
    "TrainingAccuracy": "metrics.training_accuracy",
    "TrainingLoss": "metrics.loss",
    "Utilisation": "metrics.utilisation",
    "WallClockTime": "metrics.time",
    "WordErrorRate": "metrics.decoded",
}
_PACKAGES = ("datasets", "networks", "results")
_HOME = {**_CORE, **_LEVELS, **_METRICS}
__all__ = [*_HOME, "__version__"]

if not TYPE_CHECKING:  # a type checker reports a name that is missing

    def __getattr__(name: str) -> Any:
        if f"deep5.{name}" in IMPORTABLE:  # a module that `import deep5` once loaded
            return import_module(f"deep5.{name}")
        if name not in _HOME:
            from deep5.core.deep500 import replaced
            from deep5.core.errors import suggestion

            meant = replaced(name) or suggestion(name, __all__)
            # Without the module, from whose names Python would add a suggestion of another kind.
            context: Any = {"name": name, "obj": None} if meant else {}
            raise AttributeError(f"module 'deep5' has no attribute {name!r}{meant}", **context)
        home = import_module(f"deep5.{_HOME[name]}")
        value = home if name in _PACKAGES else getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
