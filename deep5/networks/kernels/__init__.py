"""ONNX's operators, each written once on the array standard and a few primitives, for PyTorch, TensorFlow and JAX."""
