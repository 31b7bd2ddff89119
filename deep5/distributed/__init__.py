"""Level 3: communication schemes. The communicator's interface is in `deep5.core.communicator`."""
