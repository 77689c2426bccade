"""From a kernel's source and the types of its arguments to machine code.

`lift` rewrites the source, `entry_cuda` is the code around it, `build` goes from there to a cubin, `check` looks at what came out.
"""
