"""Integrations with other frameworks: `numpipe.torch` and `numpipe.jax`, each imported on first
use."""
