"""Tools that work on whole kernels. They call what a user could call, and nothing below imports
them, nor loads them in a call.

`verify`  a kernel under many schedules, and beside a reference (`numpipe.verify`,
          `numpipe.testing`)
`model`   the work and the time of a call, without running it (`numpipe.explain`)
`bench`   competitors measured on a GPU so that the ratio means something
`tune`    the fastest of some configurations, measured and remembered (`numpipe.autotune`)

Each imports from those above it only. Read `model.explaining` first: it is the way of one tool
through the rooms below.
"""
