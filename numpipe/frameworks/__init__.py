"""numpipe in the programs of frameworks: `jax` is `numpipe.jax`. Imported only when asked for."""
