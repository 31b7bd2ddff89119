"""The plug-in for pytest: deep5's checks and benchmarks in a user's tests."""
