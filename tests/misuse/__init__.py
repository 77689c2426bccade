"""Tables of kernels that must be rejected, one module per subject, with the first line of the error
and what it underlines.

``kernels/refusals.py`` documents the format of a case; ``test_misuse.py`` runs all of them.
"""
