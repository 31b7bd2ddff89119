"""LeNet on the digits with gradients of decreasing size: the accuracy that compression costs and the bytes it saves.

`deep5 study distributed_compression_study` trains on two ranks by all-reduce of full and compressed gradients, with
plain SGD at one learning rate. Deep gradient compression includes a momentum of 0.9, so it uses a tenth of the rate.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, fixed

FIXED = {key: value for key, value in fixed("all_reduce").items() if key != "scheme_kwargs"}
MUTABLE = {
    **MUTABLE,
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.1},
    "compression": None,
    "ranks": 2,
    "threads": 1,
}
METRICS = [(metric, None) for metric, _ in METRICS]
SIZES = {"smoke": {"epochs": 2, "dataset_kwargs": {"limit": 320}}}


def _by(compression: str, **arguments: object) -> dict[str, object]:
    return {"compression": compression, "compression_kwargs": arguments}


STUDY = {
    "none": {"compression": None},
    **{f"top {100 * ratio:g} %": _by("top_k", ratio=ratio) for ratio in (0.1, 0.01, 0.001)},
    **{f"QSGD {levels}": _by("qsgd", levels=levels) for levels in (127, 7, 1)},
    "1 bit": _by("one_bit"),
    "TernGrad": _by("terngrad"),
    "float16": _by("half_precision", kind="float16"),
    "DGC 1 %": {**_by("deep_gradient_compression", ratio=0.01), "optimizer_kwargs": {"lr": 0.01}},
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
