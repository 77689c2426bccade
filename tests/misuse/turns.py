"""Code that is not allowed where compute warpgroups take turns on tiles."""

from __future__ import annotations

import functools

import numpipe
from numpipe import BlockSpec, CompilerParams, LoweringSemantics, SpecError
from tests.kernels.refusals import Cases

WHY = "with schedule='pingpong' compute warpgroups take turns on tiles"
LEAVES = (
    "leaves the loop over tiles at line {line-2}, but "
    + WHY
    + (
        ": the next tiles belong to the other warpgroups, and their blocks are loaded; fix: run "
        "all tiles, or make the counts smaller"
    )
)
OUTSIDE = WHY + (
    ", so each slot is released by one of them, but all of them read a pipeline outside a loop "
    "over tiles; fix: put it into `for … in numpipe.tiles(…):`, or use schedule='cooperative'"
)
OF_THE_KERNEL = WHY + (
    " of the kernel function's own loops: a loop over tiles in a called function would divide "
    "its tiles among the warpgroups again; fix: write the loop in the kernel function"
)


@numpipe.function
def loads(a):
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (a_tile,) in pipe(a):
        pass


refused = Cases(loads=loads)
in_turns = functools.partial(refused, schedule="pingpong", num_compute_wgs=2)
in_turns(
    "a_pipeline_before_the_tiles",
    """
    for (k,), (a_tile,) in pipe(a):
    #                      ^^^^^^^
        pass
    for m, n in numpipe.tiles(2, 1):
        c[ds(m * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), "float32")
""",
    OUTSIDE,
)
in_turns(
    "a_function_with_a_pipeline_behind_the_tiles",
    """
    if a.shape[0] > 64:
        for m, n in numpipe.tiles(2, 1):
            pass
        loads(a)
    #   ^^^^^^^^
""",
    OUTSIDE,
    fixed_options={"schedule": "cooperative"},
)
in_turns(
    "tiles_that_are_left",
    """
    for m, n in numpipe.tiles(2, 1):
        if m == 1:
            break
    #       ^^^^^
""",
    "'break' " + LEAVES,
    fix={"tiles(2, 1)": "tiles(1, 1)", "        if m == 1:\n            break": "        pass"},
)
in_turns(
    "a_kernel_that_returns_from_a_tile",
    """
    for m, n in numpipe.tiles(2, 1):
        while m < 1:
            return
    #       ^^^^^^
""",
    "'return' " + LEAVES,
)
in_turns(
    "tiles_of_a_nested_function",
    """
    def walk():
        for m, n in numpipe.tiles(2, 1):
    #               ^^^^^^^^^^^^^^^^^^^
            pass

    walk()
""",
    OF_THE_KERNEL,
)
in_turns(
    "tiles_of_a_tile",
    """
    for m, n in numpipe.tiles(2, 1):
        for (i,) in numpipe.nd_loop((2,)):
    #               ^^^^^^^^^^^^^^^^^^^^^
            pass
""",
    WHY + ", one for each tile of the outer loop, so an inner loop over tiles has no turns to "
    "take; fix: give numpipe.tiles the counts of both, or use schedule='cooperative'",
    fixed_options={"schedule": "cooperative"},
)
in_turns(
    "steps_of_a_warpgroup",
    """
    for m, n in numpipe.tiles(2, 1):
        spec = BlockSpec((64, 64), lambda k: (m, k))
        pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), steps_of=lambda wg: 1)
    #          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (a_tile,) in pipe(a):
            pass
""",
    ", pipeline at {file}:{line}: steps_of with schedule='pingpong', in which one compute "
    "warpgroup runs all steps of a tile; fix: leave out steps_of, or set grid to the number of "
    "steps of the tile",
    kind=SpecError,
    fix={", steps_of=lambda wg: 1": ""},
)
in_turns(
    "outputs_of_one_warpgroup",
    """
    for m, n in numpipe.tiles(2, 1):
        pipe = numpipe.pipeline(grid=(1,), out_specs=(BlockSpec((64, 64), lambda k: (m, k)),))
    #          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (c_tile,) in pipe(c):
            pass
""",
    ", pipeline at {file}:{line}: out_specs with schedule='pingpong', in which each compute "
    "warpgroup has its own tile, but all of them write an output's slot together; fix: store from "
    "registers, c[…] = tile, or use schedule='cooperative'",
    kind=SpecError,
)

# ---- order tokens
refused(
    "a_turn_that_is_left",
    """
    for k in range(2):
        with numpipe.turn("x"):
            if k == 1:
                continue
    #           ^^^^^^^^
""",
    "'continue' leaves the turn without passing it; fix: move it after the 'with'",
    fix={
        "            if k == 1:\n                continue": (
            "            m = k\n        if k == 1:\n            continue"
        ),
    },
)
refused(
    "a_turn_of_a_number",
    """
    with numpipe.turn(a.shape[0]):
    #                 ^^^^^^^^^^
        pass
""",
    "turn: name must be a compile-time string, got a.shape[0]",
    fix={"a.shape[0]": '"rows"'},
)
refused(
    "two_turns_at_once",
    """
    with numpipe.turn("x"), numpipe.turn("y"):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "a turn must be the only item of its 'with'; fix: with numpipe.turn(\"name\"):",
    fix={', numpipe.turn("y")': ""},
)
refused(
    "a_turn_in_itself",
    """
    with numpipe.turn("x"):
        m = 0
        with numpipe.turn("x"):
    #   ^^^^^^^^^^^^^^^^^^^^^^^
            m += 1
""",
    "numpipe.turn('x') is inside a block of the same token, at line {line-2}: a warpgroup "
    "would wait for a turn that it must pass on first; fix: leave it out, or give it another name",
    num_compute_wgs=2,
    fix={'        with numpipe.turn("x")': '        with numpipe.turn("y")'},
)
in_turns(
    "a_turn_in_turns",
    """
    for m, n in numpipe.tiles(2, 1):
        with numpipe.turn("x"):
    #   ^^^^^^^^^^^^^^^^^^^^^^^
            pass
""",
    "numpipe.turn orders compute warpgroups that share a tile, but with schedule='pingpong' they "
    "take turns on whole tiles; fix: leave it out, or use schedule='cooperative'",
    fixed_options={"schedule": "cooperative"},
)
refused(
    "more_turns_than_barriers",
    """
    with numpipe.turn("a"):
        pass
    with numpipe.turn("b"):
        pass
    with numpipe.turn("c"):
        pass
    with numpipe.turn("d"):
  # ^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.turn('d'): no named barriers are left: a token takes 3, one for each compute "
    "warpgroup, those before it are 'a', 'b', 'c'; of the CTA's 16, 0 is the CTA's, 1…4 are "
    "the warpgroups' (the memory role's too), 15 is of out_specs, so that 3 tokens fit; let "
    "blocks share one",
    num_compute_wgs=3,
    fix={'"d"': '"a"'},
)
refused(
    "a_turn_in_a_branch_of_unequal_steps",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), steps_of=lambda wg: 1 + wg)

    for (k,), (tile,) in pipe(a):
    #                    ^^^^^^^
        if k == 0:
            with numpipe.turn("x"):
                pass
""",
    ", pipeline at {file}:{line-2}: steps_of, but the steps may execute different blocks of "
    "numpipe.turn(…), and a skipped step takes and passes their turns too; fix: put these blocks "
    "in the loop itself, not in a branch, an inner loop or a function, and not after a 'continue'",
    kind=SpecError,
    num_compute_wgs=2,
    fix={
        '        if k == 0:\n            with numpipe.turn("x"):\n                pass': (
            '        with numpipe.turn("x"):\n            pass'
        ),
    },
)
refused(
    "a_turn_of_lanes",
    """
    def body(indices, tile):
        with numpipe.turn("x"):
            pass

    numpipe.emit_pipeline_warp_specialized(body, grid=(2,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' goes through blocks of numpipe.turn, which are "
    "warpgroups', but with CompilerParams(lowering_semantics=LoweringSemantics.Lane) it is "
    "per-lane code; fix: use LoweringSemantics.Warpgroup",
    kind=SpecError,
    num_compute_wgs=2,
    compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane),
    fixed_options={"compiler_params": CompilerParams()},
)
