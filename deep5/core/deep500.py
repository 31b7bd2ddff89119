"""Names of Deep500 (Ben-Nun et al., IPDPS 2019), each with what replaces it: the table of `docs/how_to/porting.md`.

A name that deep5 does not have is answered with the new one, wherever it is looked up: in `deep5`, in a framework's
package, on a network, a communicator or a scheme, or as a module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

__all__ = ["ARGUMENTS", "NAMES", "PAGE", "missing_attribute", "replaced", "replaced_module", "stated_form"]

PAGE = "docs/how_to/porting.md"
"""The guide with the table of names."""

_OPERATOR = "d5.Operator, with specs(x), forward(x) and backward(output_grads, inputs, outputs, needs)"
_CPP = "d5.CppOperator, compiled on first use"
_CHECKED = "d5.check_forward and d5.check_gradient, which report the largest differences"
_EXECUTOR = "d5.framework(name).executor(network)"
_FROM_ONNX = "d5.Network.from_onnx(path)"
_EVENT = "d5.Event, which has all hooks"
_RULE = "d5.UpdateRule, or d5.StepOptimizer for an optimizer with its own step"
_SHARDED = "d5.ShardedSampler; a recipe's batches are divided among its ranks already"
_RANKS = "deep5 run RECIPE --ranks N"
_NETWORK_CHECK = "d5.check_executor(framework)"
_SAMPLING = "the metric d5.SamplingBias()"
_SPEC = "d5.TensorSpec(shape=…, dtype=…)"
_BACK_END = "d5.Framework: docs/how_to/extending.md describes your own back-end"
_MODEL = "d5.networks, such as d5.networks.lenet()"
_SYNCHRONOUS = "d5.ParameterServer"
_LOGGED = "d5.CSVLogger(path), and samples.csv of each result folder"
_VALUES = "executor.parameters(), which returns the live arrays by name"
_ALL = "communicator.all_reduce(buffer), in place; divide by communicator.size for the mean"
_RECEIVE = "communicator.receive(buffer, source)"
_SEND = "communicator.send(buffer, to, tag=…)"
_GATHER = "communicator.gather(buffer, out, root=0)"

NAMES: Mapping[str, str] = {
    # Tensors and devices
    "tensordesc": _SPEC,
    "TensorDescriptor": _SPEC,
    "tensor_t": "d5.TensorSpec",
    "desc_from_tensor": "d5.TensorSpec(shape=array.shape, dtype=str(array.dtype))",
    "DeviceType": "d5.Device",
    # Metrics
    "TestMetric": "d5.Metric, with a d5.Observer of each run",
    "NormDifference": _CHECKED,
    "L1Error": _CHECKED,
    "L2Error": _CHECKED,
    "MaxError": _CHECKED,
    "DiffHeatmap": "d5.check_forward(…, out=FOLDER), which draws differences",
    "WallclockTime": "d5.WallClockTime()",
    "DatasetBias": _SAMPLING,
    "DatasetAccuracy": "d5.TestAccuracy()",
    "DefaultTrainingMetrics": "the list METRICS of a recipe",
    "DefaultOpMetrics": _CHECKED,
    "MPIProfiling": "d5.CommunicationShare() and d5.CommunicationOverlap()",
    # Level 0
    "CustomOp": _OPERATOR,
    "CustomOperator": _OPERATOR,
    "CustomPythonOp": _OPERATOR,
    "CustomCPPOp": _CPP,
    "CompilableOp": _CPP,
    "compile_custom_cppop": _CPP,
    "compile_custom_cppop_inline": _CPP,
    "custom_op": "d5.framework(name).operator(operator)",
    "custom_op_from_native": "d5.NativeOperator(function, framework=name)",
    "test_op_forward": "d5.check_forward(operator, inputs)",
    "test_op_gradient": "d5.check_gradient(operator, inputs)",
    "test_nativeop_forward": "d5.check_forward(d5.NativeOperator(…), inputs)",
    "test_nativeop_gradient": "d5.check_gradient(d5.NativeOperator(…), inputs)",
    # Level 1
    "parser": _FROM_ONNX,
    "ops": "d5.Network and d5.NetworkBuilder",
    "OnnxModel": "d5.Network",
    "OnnxBaseVisitor": _BACK_END,
    "EmptyOnnxBaseVisitor": _BACK_END,
    "OnnxTestParser": "docs/results/conformance.md, which counts ONNX's node tests",
    "ExecutorEvent": _EVENT,
    "create_model": _MODEL,
    "export_network": "d5.Network.save(path), after " + _MODEL,
    "from_onnx": f"{_FROM_ONNX}, then {_EXECUTOR}",
    "test_executor_inference": _NETWORK_CHECK,
    "test_executor_backprop": _NETWORK_CHECK,
    # Methods of a network
    "fetch_tensors": _VALUES,
    "feed_tensor": "executor.load_state_dict(state), or a rule's update_rule, which returns the new parameter",
    "gradient": "executor.gradients(), after executor.inference_and_backprop(inputs, loss=…)",
    "get_params": "network.parameter_specs",
    "get_input_nodes": "network.inputs",
    "get_output_nodes": "network.outputs",
    "add_output": "network.with_outputs(names)",
    # Level 2
    "Input": "the data set's specs, by name",
    "NumpyDataset": "d5.ArrayDataset({'input': …, 'label': …})",
    "load_dataset": "d5.datasets, such as d5.datasets.mnist()",
    "load_mnist": "d5.datasets.mnist()",
    "load_fashion_mnist": "d5.datasets.fashion_mnist()",
    "load_cifar10": "d5.datasets.cifar10()",
    "load_cifar100": "d5.datasets.cifar100()",
    "load_imagenet": "d5.datasets.image_folder(folder=…)",
    "ChoiceSampler": "d5.WeightedSampler, which draws with replacement",
    "Optimizer": _RULE,
    "FirstOrderOptimizer": _RULE,
    "ReferenceOptimizer": _RULE,
    "GradientDescent": "d5.SGD, or GradientDescentOptimizer in a framework's package",
    "Runner": "d5.Trainer",
    "DefaultRunnerEvents": "[d5.ProgressBar()]",
    "TrainingStatistics": "trainer.scores, and the result folder of a run",
    "TrainingEvent": _EVENT,
    "OptimizerEvent": _EVENT,
    "SamplerEvent": _EVENT,
    "RunnerEvent": _EVENT,
    "training_events": "events in d5 itself, such as d5.ProgressBar, d5.StopAtAccuracy and d5.Scheduled",
    "TerminalBarEvent": "d5.ProgressBar()",
    "EpochHPSchedule": "'schedules': {'lr': d5.Piecewise(epochs={0: 0.1, 81: 0.01})} in the recipe",
    "StepHPSchedule": "'schedules': {'lr': d5.Piecewise(steps={0: 0.1, 1000: 0.01})} in the recipe",
    "AccuracyAbortEvent": "d5.StopAtAccuracy(target)",
    "TimeAbortAfterTestEvent": "d5.StopAfter(seconds)",
    "TimeAbortImmediateEvent": "d5.StopAfter(seconds)",
    "CsvWriterEvent": _LOGGED,
    "SummaryGeneratorEvent": _LOGGED,
    "test_optimizer": "d5.check_optimizer(rule)",
    "test_training": "d5.prove_same_trajectory(…)",
    "test_sampler": _SAMPLING,
    "Crop": "d5.RandomCrop(size, padding=4) or d5.CenterCrop(size)",
    "RandomFlip": "d5.Flip()",
    "ReplicateBatch": "'accumulate' in the recipe, or a d5.Transform",
    # Level 3
    "CommunicationNetwork": "d5.Communicator",
    "DistributedSampler": _SHARDED,
    "PartitionedDistributedSampler": _SHARDED,
    "ConsistentDecentralized": "d5.AllReduce()",
    "ConsistentParameterServer": _SYNCHRONOUS,
    "ConsistentNeighbors": "d5.Neighbourhood()",
    "InconsistentParameterServer": "d5.AsynchronousParameterServer()",
    "ModelAverageDecentralized": "d5.LocalSGD()",
    "HorovodDistributedOptimizer": "d5.AllReduce()",
    "mpi_fork": _RANKS,
    "mpi_end_barrier": _RANKS,
    # Methods of a communicator
    "sync_all": _ALL,
    "sync_all_at_root": "communicator.reduce(buffer, root=0), then communicator.broadcast(buffer, root=0)",
    "sync_all_with_root": "communicator.broadcast(buffer, root=0)",
    "gather_at_root": _GATHER,
    "send_to_root": _SEND,
    "send_to_rank": _SEND,
    "wait_for_any_rank": _RECEIVE,
    "wait_for_root": _RECEIVE,
    "reduce_from_neighbors": "communicator.exchange(buffer, out, ranks)",
    # Attributes of a scheme
    "communication": "self.communicator",
    "base_optimizer": "self.optimizer",
}
"""A name of Deep500 to what replaces it."""

ARGUMENTS: Mapping[str, str] = {
    "transformations": "the key 'train_transforms': [d5.RandomCrop(32, padding=4), d5.Flip()]",
    "events": "the key 'events' of the recipe",
}
"""An argument of a Deep500 component to what replaces it."""

_MODULES = {
    "deep500": "import deep5 as d5",
    "recipes": "import deep5 as d5, then d5.run_recipe(FIXED, MUTABLE, METRICS)",
}


def replaced(name: str) -> str:
    """The tail of a message that names what replaces a name of Deep500, or ''.

    >>> replaced("CommunicationNetwork"), replaced("Trainer")
    ("; for Deep500's CommunicationNetwork, deep5 has d5.Communicator (docs/how_to/porting.md)", '')
    """
    new = NAMES.get(name)
    return "" if new is None else f"; for Deep500's {name}, deep5 has {new} ({PAGE})"


def replaced_module(name: str) -> str:
    """What to write instead of importing a module of Deep500, or ''."""
    return _MODULES.get(name, "")


def missing_attribute(owner: object, name: str) -> NoReturn:
    """`__getattr__` of a class whose objects had other methods in Deep500.

    Raises:
        AttributeError: Always; for a name of Deep500, it names what replaces it.
    """
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{replaced(name)}")


def stated_form(own: Callable[..., Any], old: tuple[str, ...]) -> str | None:
    """The signature of a method if it has Deep500's parameters, else None.

    Args:
        own: The method, as a function of its class.
        old: Names of its parameters in Deep500 after `self`; a single one may have any name.
    """
    try:
        parameters = [each for each in inspect.signature(own).parameters.values() if each.default is each.empty]
    except (TypeError, ValueError):
        return None
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return None
    names = tuple(each.name for each in parameters[1:])
    same = len(names) == 1 if len(old) == 1 else names == old or (len(names) == len(old) and names[-1] == old[-1])
    return f"({', '.join(each.name for each in parameters)})" if same else None
