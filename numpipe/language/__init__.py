"""What a kernel may say, with both of its meanings side by side: `name.py` simulated, `name_cuda.py` compiled.

`tiles` are values in registers and how they come and go; `memory` holds the primitives of pipelines by hand and code for
lanes; `pipeline` the ring, the only place where its protocol is written; `grid` which CTA computes what. Each imports from
those before it.
"""
