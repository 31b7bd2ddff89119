"""Convolution by the definition, im2col, FFT and Winograd's algorithms, compared with the framework's own.

Each time comes with work (multiplications; complex ones for the FFT) and depth (dependent additions) by the published
formulas, see `deep5.operators.zoo.work`. GFLOP/s count the algorithm's operations, not those of the definition.
"""

import deep5 as d5
from deep5.metrics.operator_time import OperatorCoverage, OperatorTime

FIXED = {"problems": "studies.convolution"}
MUTABLE = {
    "frameworks": ("pytorch",),
    "rigorous": False,
    "rounds": 30,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(OperatorTime(), None), (OperatorCoverage(), None)]
SIZES = {"smoke": {"uses": ("size-4",), "rounds": 7}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
