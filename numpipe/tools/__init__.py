"""Tools that work on whole kernels. They use only what users can call; nothing else in numpipe
imports them, and no call loads them.

`verify`  runs a kernel under many schedules and against a reference (`numpipe.verify`,
          `numpipe.testing`)
`model`   computes the work and the time of a call without running it (`numpipe.explain`)
`bench`   measures competitors on a GPU so that their ratio is meaningful
`tune`    finds the fastest of several configurations by measuring, and remembers it
          (`numpipe.autotune`)

Each imports only from those listed above it. Start with `model.explaining`, which shows how a tool
uses the packages below.
"""
