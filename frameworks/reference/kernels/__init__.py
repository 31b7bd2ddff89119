"""NumPy kernels with the exact semantics of ONNX operators, one idea per module."""
