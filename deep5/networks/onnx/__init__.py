"""Read, check, complete and write ONNX files."""
