"""ONNX files read, checked, completed and written."""
