"""numpipe inside other frameworks: `numpipe.torch` and `numpipe.jax`. Each is imported when it is
first asked for."""
