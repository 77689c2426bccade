"""What works on whole kernels: `verify` and `testing`, `model` (explain), `tune`, `bench`."""
