"""`check_communicator`: what every communicator has to do, run by all of its ranks together."""
