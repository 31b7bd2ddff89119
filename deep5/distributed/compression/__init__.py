"""Compression: gradients compressed for communication between ranks, one paper per file."""

from deep5.distributed.compression.check import check_compression
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.deep_gradient import DeepGradientCompression
from deep5.distributed.compression.half_precision import HalfPrecision
from deep5.distributed.compression.one_bit import OneBit
from deep5.distributed.compression.qsgd import QSGD
from deep5.distributed.compression.random_k import RandomKSparsification
from deep5.distributed.compression.sparse_all_reduce import SparseAllReduce
from deep5.distributed.compression.terngrad import TernGrad
from deep5.distributed.compression.top_k import TopKSparsification

__all__ = [
    "QSGD",
    "Compression",
    "DeepGradientCompression",
    "HalfPrecision",
    "OneBit",
    "RandomKSparsification",
    "SparseAllReduce",
    "TernGrad",
    "TopKSparsification",
    "check_compression",
]
