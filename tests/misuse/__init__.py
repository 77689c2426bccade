"""Misuse, a module a subject: kernels that are refused, with the first line that each is refused
with and what is underlined in it.

``kernels/refusals.py`` says how a case is written; ``test_misuse.py`` runs all of them.
"""
