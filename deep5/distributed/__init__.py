"""Level 3: communication schemes. The communicator's interface stands in `deep5.communicator`, below all levels."""
