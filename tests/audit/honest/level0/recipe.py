
import deep5 as d5

FIXED = {"operator": "MatMul", "shapes": [[64, 64], [64, 64]]}
MUTABLE = {"frameworks": "reference", "threads": 1, "rounds": 8, "pictures": False}
METRICS = [(d5.OperatorTime(), None), (d5.OperatorCoverage(), None)]
