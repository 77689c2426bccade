"""Helpers shared by tests: kernels, generated pipelines, and fakes of arrays, drivers and
libraries."""
