"""The recorder: the result folder of a loop that is not deep5's."""
