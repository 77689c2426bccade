"""What numpipe says when something is wrong: errors, hazards by name, reports, the log.

Read `errors` first: the types of errors, and `Position`, which stamps a message with the user's
line. `hazards` names what can go wrong in a pipeline, and `reports` holds what was found; the
simulated SM fills one, and so does the host when a kernel with ``debug=True`` hangs. `frames`
shortens tracebacks, `source` keeps the text of functions, `format` is the language of
`debug_print`, `log` prints where the time of calls goes, and `progress_bar` shows how far
something is. Nothing here knows of kernels, rings or arrays: a message is written where the mistake
is found.
"""
