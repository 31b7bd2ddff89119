"""The parts of `check_executor`."""
