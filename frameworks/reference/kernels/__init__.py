"""NumPy kernels with the exact semantics of ONNX's operators, one idea a module."""
