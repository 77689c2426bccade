"""Misused body form and functions of kernels: bodies, carries and compute contexts that do not fit,
and functions that cannot be called."""

from __future__ import annotations

import numpipe
from numpipe import SpecError
from tests.kernels.emitted_kernels import Config, share
from tests.kernels.refusals import Cases

emit = numpipe.emit_pipeline_warp_specialized


def plain(x):
    return x + 1


def by_k(k):
    return (0, k)


refused = Cases(Config=Config, by_k=by_k, emit=emit, share=share)

# bodies
refused(
    "not_called_on_arrays",
    """
    def body(indices, x):
        pass

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "a pipeline is emitted for arrays: emit_pipeline_warp_specialized(…)(a, b)",
    fix={"lambda k: (0, k)),))": "lambda k: (0, k)),))(a)"},
)
refused(
    "called_with_keywords",
    """
    emit(body, grid=(1,), in_specs=(spec,))(a=a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "an emitted pipeline is called on its arrays by position",
    fix={"(a=a)": "(a)"},
)
refused(
    "a_body_that_takes_too_few",
    """
    def body(indices):
        pass

    emit(body, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 1 argument, but is called with 2: "
    "(indices, 1 tile)",
    kind=SpecError,
    fix={"(indices)": "(indices, x)"},
)
refused(
    "a_body_that_takes_a_carry_without_a_context",
    """
    def body(indices, x, acc):
        return acc

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 3 arguments, but is called with 2: "
    "(indices, 1 tile); a carry needs a compute_context",
    kind=SpecError,
    fix={
        "    emit(": "    def compute(pipeline):\n        pipeline(0)\n\n    emit(",
        "),))(a)": "),), compute_context=compute)(a)",
    },
)
refused(
    "a_body_that_takes_no_carry",
    """
    def compute(pipeline):
        pipeline(0)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 2 arguments, but is called with 3: "
    "(indices, 1 tile, carry); with a compute_context the carry comes last",
    kind=SpecError,
    fix={"(indices, x):\n        pass": "(indices, x, n):\n        return n"},
)
refused(
    "a_body_that_loses_the_carry",
    """
    def body(indices, x, n):
        n = n + 1

    def compute(pipeline):
        pipeline(0)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' returns nothing, but it takes a carry; fix: return "
    "the next carry",
    kind=SpecError,
    fix={"n = n + 1": "return n + 1"},
)
refused(
    "a_body_that_returns_without_a_carry",
    """
    def body(indices, x):
        return 1

    emit(body, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' returns a value, but there is no carry; fix: pass a "
    "compute_context that calls pipeline(initial carry), or return nothing",
    kind=SpecError,
    fix={"return 1": "pass"},
)
refused(
    "a_body_that_is_no_function",
    """
    emit(3, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        ", pipeline at {file}:{line}: body must be a function nested in the kernel or decorated "
        "with @numpipe.function, got int"
    ),
    compiled=(
        ", pipeline at {file}:{line}: body must be a function nested in the kernel or decorated "
        "with @numpipe.function, got int32"
    ),
    kind=SpecError,
)
refused(
    "a_carry_that_changes_its_shape",
    """
    def body(indices, x, acc):
        return numpipe.zeros((64, 128), np.float32)

    def compute(pipeline):
        acc = pipeline(numpipe.zeros((64, 64), np.float32))
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)  # called
""",
    ", pipeline at {file}:{line+3}: body 'body' was given the carry tile (64, 64) float32 "
    "and returned tile (64, 128) float32: a carry keeps its shape and type from step to step",
)
refused(
    "a_carry_that_loses_a_part",
    """
    def body(indices, x, carry):
        return carry[0]

    def compute(pipeline):
        both = pipeline((1, 2))
    #          ^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)  # called
""",
    ", pipeline at {file}:{line+3}: body 'body' was given the carry (int32, int32) and "
    "returned int32: a carry keeps its shape and type from step to step",
)

# compute contexts
refused(
    "a_context_that_never_calls",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        pass

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' never calls the pipeline: write "
    "carry = pipeline(carry) once",
    kind=SpecError,
    fix={"        pass": "        carry = pipeline(0)"},
)
refused(
    "a_context_that_calls_twice",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        n = pipeline(0)
        n = pipeline(n)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' calls the pipeline 2 times (line "
    "{line-2}): a pipeline runs once; emit another one",
    kind=SpecError,
    fix={"        n = pipeline(n)\n": ""},
)
refused(
    "a_context_that_calls_under_a_condition",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        if a.shape[0] > 64:
            pipeline(0)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' calls the pipeline under a "
    "condition or in a loop (line {line-2}): every warpgroup runs it, once",
    kind=SpecError,
    fix={"        if a.shape[0] > 64:\n            pipeline(0)": "        pipeline(0)"},
)
refused(
    "a_context_that_calls_in_a_loop",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        for i in range(2):
            pipeline(i)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' calls the pipeline under a "
    "condition or in a loop (line {line-2}): every warpgroup runs it, once",
    kind=SpecError,
    fix={"        for i in range(2):\n            pipeline(i)": "        pipeline(0)"},
)
refused(
    "a_context_that_may_return_before",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        if a.shape[0] > 64:
            return
        pipeline(0)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' may return (line {line-3}) "
    "before it calls the pipeline: every warpgroup runs it, once",
    kind=SpecError,
    fix={"        if a.shape[0] > 64:\n            return\n": ""},
)
refused(
    "a_context_that_passes_the_pipeline_on",
    """
    def body(indices, x, n):
        return n

    def other(run):
        return run(0)

    def compute(pipeline):
        other(pipeline)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' passes the pipeline on (line "
    "{line-2}): it calls it itself, pipeline(carry)",
    kind=SpecError,
    fix={"other(pipeline)": "pipeline(0)"},
)
refused(
    "a_context_without_an_initial_carry",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        pipeline()

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' calls the pipeline with 0 "
    "arguments (line {line-2}): it takes the initial carry",
    kind=SpecError,
    fix={"pipeline()": "pipeline(0)"},
)
refused(
    "a_context_of_two_parameters",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline, more):
        pipeline(more)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' takes 2 arguments, but is called "
    "with 1: the pipeline",
    kind=SpecError,
    fix={"pipeline, more": "pipeline", "pipeline(more)": "pipeline(0)"},
)
refused(
    "a_context_that_returns_the_carry",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        return pipeline(0)

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: compute_context 'compute' returns a value, which is not used; "
    "fix: store results through the kernel's output references",
    kind=SpecError,
    fix={"return pipeline(0)": "pipeline(0)"},
)
refused(
    "a_context_that_is_a_tile",
    """
    def body(indices, x, n):
        return n

    emit(body, grid=(1,), in_specs=(spec,), compute_context=numpipe.zeros((64, 64), np.float32))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        ", pipeline at {file}:{line}: compute_context must be a function nested in the kernel or "
        "decorated with @numpipe.function, got tile"
    ),
    compiled=(
        ", pipeline at {file}:{line}: compute_context must be a function nested in the kernel or "
        "decorated with @numpipe.function, got tile (64, 64) float32"
    ),
    kind=SpecError,
)

# carry_coroutine
refused(
    "a_context_and_a_coroutine",
    """
    def body(indices, x, n):
        return n

    def compute(pipeline):
        pipeline(0)

    def carry():
        yield 0

    emit(body, grid=(1,), in_specs=(spec,), compute_context=compute, carry_coroutine=carry)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "emit_pipeline_warp_specialized: compute_context and carry_coroutine do the same; fix: give "
    "only one of them",
    fix={"compute_context=compute, ": ""},
)
refused(
    "a_coroutine_that_yields_twice",
    """
    def body(indices, x, n):
        return n

    def carry():
        n = yield 0
        yield n
    #   ^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,), carry_coroutine=carry)(a)
""",
    "carry_coroutine 'carry' yields 2 times: it yields the initial carry, once, and receives "
    "the final one",
    fix={"        yield n\n": ""},
)
refused(
    "a_coroutine_that_yields_nothing",
    """
    def body(indices, x, n):
        return n

    def carry():
        n = yield
    #       ^^^^^

    emit(body, grid=(1,), in_specs=(spec,), carry_coroutine=carry)(a)
""",
    "carry_coroutine 'carry' yields nothing: it yields the initial carry, and receives the "
    "final one",
    fix={"n = yield": "n = yield 0"},
)
refused(
    "a_coroutine_with_a_parameter",
    """
    def body(indices, x, n):
        return n

    def carry(first):
  # ^^^^^^^^^^^^^^^^^
        yield first

    emit(body, grid=(1,), in_specs=(spec,), carry_coroutine=carry)(a)
""",
    "carry_coroutine 'carry' takes arguments, but is called with none",
    fix={"carry(first)": "carry()", "yield first": "yield 0"},
)
refused(
    "a_coroutine_that_yields_in_a_loop",
    """
    def body(indices, x, n):
        return n

    def carry():
        for i in range(2):
            yield i

    emit(body, grid=(1,), in_specs=(spec,), carry_coroutine=carry)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: carry_coroutine 'carry' yields to the pipeline under a "
    "condition or in a loop (line {line-2}): every warpgroup runs it, once",
    kind=SpecError,
    fix={"        for i in range(2):\n            yield i": "        yield 0"},
)
refused(
    "a_coroutine_without_yield",
    """
    def body(indices, x, n):
        return n

    def carry():
        pass

    emit(body, grid=(1,), in_specs=(spec,), carry_coroutine=carry)(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: 'carry' has no 'yield'; fix: pass it as compute_context=",
    kind=SpecError,
)
refused(
    "a_generator_that_carries_nothing",
    """
    def count():
        yield 1
    #   ^^^^^^^
""",
    "'yield' makes a generator, and the GPU has none: loop with 'for'",
)

# conflicts between kernel and pipeline
refused(
    "an_emitted_pipeline_called_on_more_arrays",
    """
    emit(body, grid=(1,), in_specs=(spec,))(a, b)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: called on 2 arrays, but in_specs has 1",
    kind=SpecError,
    fix={")(a, b)": ")(a)"},
)
refused(
    "an_index_map_of_two_indices",
    """
    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),))(a)
    #                                                   ^^^^^^^^^^^^^^^^^^^
""",
    "in_specs[0]: index_map takes 2 indices, but the pipeline's grid has 1",
    fix={"lambda i, k: (i, k)": "lambda k: (0, k)"},
)
refused(
    "a_delay_of_all_slots",
    """
    emit(body, grid=(1,), max_concurrent_steps=2, delay_release=2, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release=2 needs more than 2 slots, got "
    "max_concurrent_steps=2: the slot of step k is still in use when step k + delay_release waits "
    "for its own; fix: set the number of slots to at least 3",
    kind=SpecError,
    fix={"max_concurrent_steps=2": "max_concurrent_steps=3"},
)
refused(
    "an_argument_it_does_not_have",
    """
    emit(body, grid=(1,), slots=2, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "emit_pipeline_warp_specialized(body, *, grid, in_specs=(), out_specs=(), "
    "max_concurrent_steps=None, delay_release=None, compute_context=None, "
    "carry_coroutine=None, num_compute_wgs=None, wg_axis=None, memory_registers=None, "
    "manual_produced_barriers=False, manual_consumed_barriers=False, pipeline_state=None, "
    "memory_thread_idx=None, steps_of=None): it has no argument 'slots'",
    fix={"slots=2": "max_concurrent_steps=2"},
)
a_pipeline_that_only_the_compute_role_reaches = refused(
    "a_pipeline_that_only_the_compute_role_reaches",
    """
    def inner():
        for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
    #                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            pass

    functions = (inner, inner)

    def body(indices, x):
        functions[0]()  # called

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    simulated=(
        ", pipeline at {file}:{line}: only compute warpgroups come here, so nobody issues its "
        "loads: a body or compute_context that runs a pipeline of its own holds it, or calls the "
        "function that holds it by name"
    ),
)

# functions
refused(
    "a_plain_index_map",
    """
    spec = BlockSpec((64, 64), by_k)
    #                          ^^^^
""",
    "'by_k' is a plain Python function: a kernel calls functions that are nested in it or "
    "decorated with @numpipe.function; put @numpipe.function above 'def by_k'",
)
refused(
    "a_function_without_an_argument",
    """
    x = share(Config())
    #   ^^^^^^^^^^^^^^^
""",
    "share(cfg, parts): argument 'parts' missing",
    fix={"Config()": "Config(), 2"},
)
refused(
    "a_function_with_an_argument_it_has_not",
    """
    x = share(Config(), parts=2, more=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "share(cfg, parts): it has no argument 'more'",
    fix={", more=1": ""},
)
refused(
    "a_nested_function_with_a_default",
    """
    def f(x, y=1):
  # ^^^^^^^^^^^^^^
        return x + y
""",
    "nested function 'f': default arguments are not supported; fix: use the kernel's names "
    "directly, which are captured by value, or use @numpipe.function",
)
refused(
    "a_nested_function_called_wrongly",
    """
    def f(x, y):
        return x + y

    z = f(1, x=2)
    #   ^^^^^^^^^
""",
    "f(x, y): argument 'x' given twice",
    fix={"x=2": "y=2"},
)
refused(
    "keywords_for_a_function_in_a_tuple",
    """
    def f(x):
        return x

    functions = (f, f)
    z = functions[1](x=a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'functions[1]' is called with keywords, but parameter names are known only for functions "
    "that are called by their own name; fix: pass the arguments by position",
    fix={"x=a.shape[0]": "a.shape[0]"},
)
