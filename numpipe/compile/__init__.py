"""From a kernel's source and the types of its arguments to machine code.

`lift` rewrites the source for both executions; Numba types it and lowers it to LLVM IR, whether or
not the machine has a GPU; NVVM makes LTO-IR of that and nvJitLink a cubin (`build`). `entry_cuda`
is the code around the kernel function, `check` looks at each stage. One compile serves a signature:
dtypes, ranks, major orders and Statics, and for each array whether TMA can address it. Shapes are
run-time values. The compiled kernel is an ordinary `@cuda.jit` one:
``kernel.compiled(*args).kernel``.

Here belongs what knows a whole kernel while it is compiled. The GPU's meaning of an operation does
not: it stands beside the operation, in a `_cuda` sibling. Nor do Numba's internals (`core.numba`),
or calls and what is kept between them (`kernels`, `launch`). Read `build` first, then `lift.lift`.
"""
