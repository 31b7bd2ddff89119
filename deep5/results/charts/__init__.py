"""Charts of results: operators, collectives, training, profiles and networks; import from the module of the kind."""
