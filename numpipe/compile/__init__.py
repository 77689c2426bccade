"""Compilation of a kernel's source, with the types of its arguments, to machine code.

`lift` rewrites the source for the simulator and the GPU. Numba types it and lowers it to LLVM IR,
with or without a GPU in the machine. NVVM compiles that to LTO-IR, and nvJitLink links it into a
cubin (`build`). `entry_cuda` is the code around the kernel function, and `check` checks each stage.
One compile serves a signature: dtypes, ranks, major orders and Statics, and for each array whether
TMA can address it. Shapes are run-time values. The compiled kernel is an ordinary `@cuda.jit`
kernel: ``kernel.compiled(*args).kernel``.

This folder has the code that works on a whole kernel during its compilation. The GPU implementation
of an operation is next to the operation, in a `_cuda` sibling. Numba's internals are in
`core.numba`; calls, and the state kept between them, are in `kernels` and `launch`. Read `build`
first, then `lift.lift`.
"""
