"""What `deep5.operators.check` looks at, one idea a module."""
