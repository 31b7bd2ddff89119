"""Evidence for a guess: what the name and the numbers of a tensor say about it (rules 4 and 5)."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

__all__ = ["mask_in", "names_a_constant", "parameter_in_name", "setting_in_name"]

# The lowest number of each element type; exporters also store it in a wider one.
_LOWEST = (-65504.0, -3.3895313892515355e38, -3.4028234663852886e38, float(np.finfo(np.float64).min))
# A mask adds at most this to what it excludes; no trained bias is as low.
_EXCLUDING = -100.0
# Names that exporters give to numbers that are no parameters: torch (`onnx::`, `/…`, `val_N`, digits), onnxscript,
# tf2onnx and TensorFlow (`Const`, `const_fold…`, `…/y:0`), paddle2onnx.
_NO_PARAMETER = re.compile(
    r"""^onnx:: | ^/ | ^_?val_\d+ | ^\d+$ | ^_inlfunc | \| | (^|_)lifted_tensor | ^p2o\. | (^|\.)helper\.constant
    | (^|[./_])const(ant)?s?($|[./_:\d]) | const_fold | /[xy](:\d+)?$ | (^|\.)tmp_\d+ | fill_constant""",
    re.VERBOSE | re.IGNORECASE,
)
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_PADDLE = re.compile(r"\.(w|b)_\d+(\D|$)")
_VARIABLE = re.compile(r"ReadVariableOp|/read(:\d+)?$")
# The last part of a path that names a setting or a buffer.
_SETTING = re.compile(
    r"""(^|_)( eps | epsilon | inf | infinity | min | max | minimum | maximum | low(er)? | upp?er | bound
    | zero(es|s)? | ones? | two | half | pi | sqrt | stride s? | start | stop | step | limit | delta | size | num
    | count | mask | fill | pad | padding | momentum | ratio | threshold | zero_point | inv_freq
    | norm_factor | running_mean | running_var | num_batches_tracked )\d*$""",
    re.VERBOSE,
)
# The last part of a path that names a parameter; also where no other part shows that it is a path.
_LEARNED = re.compile(
    r"""(^|_)( weight | bias | kernel | gamma | beta | alpha | slope | gain | gate | gating | temperature | temp | tau
    | lambda | logit_scale | logit_bias | log_scale | log_var | log_sigma | layer_scale | res_?scale | skip_scale
    | res_?weight | re_?zero | mixing | coef | intercept | embedding | weight_[gv] | w | b )s?_?\d*$""",
    re.VERBOSE,
)
_SCALE = re.compile(
    r"(^|[./_])(weight|input|output|activation|act|[abckqvwxy]|kv)_scales?(_inv)?(:\d+)?$|quant.*scale|scale.*quant"
)
_RUNNING = re.compile(r"(running|moving)_(mean|var|variance|avg)(\W|_\d|$)")


def mask_in(array: np.ndarray) -> str | None:
    """What makes an array a mask or a bound instead of numbers to train; None if nothing does.

    Args:
        array: Floating-point numbers, of any shape.
    """
    if not array.size:
        return "no elements"
    numbers = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    if np.isinf(numbers).any():
        return "contains an infinity"
    low = float(numbers.min())
    if low in _LOWEST:
        return "contains the lowest number of its type"
    if low <= _EXCLUDING and np.isin(numbers, (0, low)).all():
        return f"contains only {low:g}" + ("" if numbers.max() == low else " and 0")
    if _triangular(numbers):
        return "is a triangle of ones"
    return None


def _triangular(numbers: np.ndarray) -> bool:
    """Whether each matrix is a triangle of ones, as causal masks are; a single element is none."""
    if numbers.ndim < 2 or min(numbers.shape[-2:]) < 2 or numbers.flat[0] != 1 or not np.isin(numbers, (0, 1)).all():
        return False
    ones = np.ones(numbers.shape[-2:], numbers.dtype)
    return any(bool((numbers == part).all()) for part in (np.tril(ones), np.triu(ones)))


def setting_in_name(name: str, names: Collection[str]) -> str | None:
    """What in a name says that the tensor is never trained; None if nothing does.

    Args:
        name: The tensor's name.
        names: All names of the file: a quantization scale has a zero point or a quantized tensor next to it.
    """
    lower = name.lower()
    if _RUNNING.search(lower):
        return "named as a running statistic"
    if "scale" in lower:
        base = re.sub(r"[._/]?scales?(:\d+)?$", "", name)
        others = (name.replace("scale", "zero_point"), f"{base}_zero_point", f"{base}_quantized", f"{base}_qweight")
        if _SCALE.search(lower) or any(other != name and other in names for other in others):
            return "named as a quantization scale"
    return None


def names_a_constant(name: str) -> bool:
    """Whether an exporter gives such names to numbers that are no parameters."""
    return _NO_PARAMETER.search(name) is not None


def parameter_in_name(name: str, producer: str) -> str | None:
    """Whose parameters a name belongs to; None if it is no name of a parameter.

    Args:
        name: The tensor's name.
        producer: The exporter, as the file names it. PyTorch names only what a module owns by a plain identifier.

    >>> parameter_in_name("blocks.0.resweight", ""), parameter_in_name("dense/BiasAdd/ReadVariableOp:0", "tf2onnx")
    ("a path in torch's state dict", "TensorFlow's ReadVariableOp")
    >>> parameter_in_name("logit_scale", ""), parameter_in_name("linear_0.b_0", "PaddlePaddle")
    ('named as a parameter', "a name of Paddle's parameters")
    >>> parameter_in_name("onnx::Mul_12", "pytorch"), parameter_in_name("half", "")
    (None, None)
    """
    if names_a_constant(name):
        return None
    if _VARIABLE.search(name):
        return "TensorFlow's ReadVariableOp"
    if _PADDLE.search(name):
        return "a name of Paddle's parameters"
    last = re.sub(r":\d+$", "", re.split(r"[./](?!\d+$)", name)[-1]).lower()
    learned = _LEARNED.search(last) is not None
    if _SETTING.search(last) and not learned:
        return None
    if _PATH.fullmatch(name) and ("." in name or producer.startswith(("pytorch", "torch"))):
        return "a path in torch's state dict"
    return "named as a parameter" if learned else None
