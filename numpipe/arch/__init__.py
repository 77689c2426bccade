"""Targets and element types: the numbers and instructions of a GPU."""
