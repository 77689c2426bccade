"""What numpipe says when something is wrong: errors, hazards by name, reports, tracebacks of the user's lines, the log.

Nothing here knows of kernels. Read `errors` first, then `hazards` and `reports`.
"""
