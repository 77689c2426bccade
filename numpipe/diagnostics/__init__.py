"""Errors, hazard names, reports, and the log.

Start with `errors`, which has the error types and `Position`, which adds the user's line to a
message. `hazards` lists the mistakes that a pipeline can have, and `reports` describes those that
were found; both the simulated SM and the host (when a kernel with ``debug=True`` hangs) create
reports. `frames` shortens tracebacks, `source` keeps the text of functions, `format` implements the
format strings of `debug_print`, `log` shows where calls spend their time, and `progress_bar` shows
progress. Nothing here depends on kernels, rings or arrays: messages are written where mistakes are
found.
"""
