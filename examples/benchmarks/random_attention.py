"""Compare numpipe.ops.attention with cuDNN, through torch's scaled_dot_product_attention, on random
shapes.

    cd examples/benchmarks
    # 40 shapes with a new seed
    python random_attention.py --out result.json
    python random_attention.py --seed 7 --count 10 --dtype bf16,f16 --out r.json --picture r.svg
    python random_attention.py --shapes 2,28/4,1777,128 --masks causal --out result.json
    # all exact configs, to judge the choice
    python random_attention.py --lengths 32,600 --depths 64 --configs --out result.json
    # print the contents of a file, without a GPU
    python random_attention.py --read result.json

A shape is B,H/HK,S,D: batches, heads of queries and of keys, positions, depth of a head; S is
QUERIES:KEYS if they differ. In random shapes, positions are log-uniform from 32 to 11000, the depth
is 64, 128 or 256, heads may share keys, half of the masks are causal, and batches are log-uniform
up to 16, limited to a few milliseconds of work.

`harness.sweep` describes how rows are measured. Errors are relative, in the Frobenius norm, of 64
rows of 8 heads against float64; in addition, every element is compared with cuDNN's.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import harness
import product_rows
from attention_reference import REFERENCE, Cudnn, relative_error
from harness import listed
from product_rows import Case, Goal, log_uniform
from random_products import CHUNK, DTYPES, Buffers

from numpipe import bench

OURS = "numpipe"
MASKS, DEPTHS, HEADS = ("full", "causal"), (64, 128, 256), (8, 12, 16, 24, 28, 32, 40, 64)
LEAST, MOST = 32, 11_000
MOST_FLOPS, MOST_BYTES = 3e12, 2 << 30
MOST_SETS = 256
ERROR, DIFFERENCE = 0.02, 0.1
"""largest relative error; largest difference of an element from cuDNN's, relative to the element
and the root mean square. Larger values mean that something else was computed"""
LOAD = {"shape": "2,16,8192,128", "mask": "full", "dtype": "bf16", "of": "load"}
MUST, AIM = {"random": Goal(1.16, None, 0.95)}, {"random": Goal(None, None, None, None)}
Shape = tuple[int, int, int, int, int, int]


def shape_of(text: str) -> Shape:
    """Parse a shape into (batches, heads, heads of keys, queries, keys, depth). Raises ValueError
    for other texts.

    >>> shape_of("2,28/4,1777,128"), shape_of("1,8,100:300,64")
    ((2, 28, 4, 1777, 1777, 128), (1, 8, 8, 100, 300, 64))
    """
    batches, heads, positions, depth = text.split(",")
    (first, *shared), (queries, *keys) = heads.split("/"), positions.split(":")
    sizes = tuple(
        int(size)
        for size in (batches, first, *(shared or [first]), queries, *(keys or [queries]), depth)
    )
    if len(sizes) != 6 or min(sizes) < 1 or sizes[1] % sizes[2]:
        raise ValueError(
            f"{text!r} is not B,H/HK,S,D with heads that are a multiple of those of keys"
        )
    return sizes  # type: ignore[return-value]


def spell(shape: Shape) -> str:
    batches, heads, shared, queries, keys, depth = shape
    return (
        f"{batches},{heads}{f'/{shared}' if shared != heads else ''},"
        f"{queries}{f':{keys}' if keys != queries else ''},{depth}"
    )


def flops(shape: Shape, causal: bool) -> float:
    """Return the operations of both products, without those that a causal mask leaves out."""
    batches, heads, _, queries, keys, depth = shape
    seen = sum(min(i + 1, keys) for i in range(queries)) if causal else queries * keys
    return 4.0 * batches * heads * seen * depth


def nbytes(shape: Shape) -> int:
    batches, heads, shared, queries, keys, depth = shape
    return 2 * batches * depth * 2 * (heads * queries + shared * keys)


def random_cases(
    count: int,
    seed: int,
    dtypes: Sequence[str],
    lengths: tuple[int, int] = (LEAST, MOST),
    depths: Sequence[int] = DEPTHS,
) -> list[Case]:
    """Return `count` cases of a seed in each type; a larger count starts with the same cases."""
    draw, found = random.Random(f"{seed} attention"), []
    while len(found) < count:
        heads = draw.choice(HEADS)
        shared = draw.choice(
            [heads, heads, *(heads // sharing for sharing in (2, 4, 7, 8) if heads % sharing == 0)]
        )
        queries = round(log_uniform(draw, *lengths))
        mask = draw.choice(MASKS)
        depth = draw.choice(depths)
        keys = (
            round(log_uniform(draw, *lengths))
            if mask == "full" and draw.random() < 0.3
            else queries
        )
        batches = round(log_uniform(draw, 1, 16))
        while batches > 1 and (
            flops((batches, heads, shared, queries, keys, depth), False) > MOST_FLOPS
            or nbytes((batches, heads, shared, queries, keys, depth)) > MOST_BYTES
        ):
            batches -= 1
        found.append((spell((batches, heads, shared, queries, keys, depth)), mask))
    return [
        {"shape": shape, "mask": mask, "dtype": dtype, "of": "random"}
        for shape, mask in found
        for dtype in dtypes
    ]


# ---- what is measured
class Heads(Buffers):
    """Sets of arrays of heads: (batches, heads, positions, depth)."""

    def __init__(self, sets: int, shape: tuple[int, int, int, int], dtype: Any) -> None:
        super().__init__(sets, (shape[0] * shape[1] * shape[2], shape[3]), dtype)
        self.views = [view.view(shape) for view in self.views]


def contest(
    process: int, case: harness.Case, reference: type[Any] = Cudnn, configs: bool = False
) -> harness.Contest:
    """Return a row that is ready to be measured. With `configs`, all exact configs that fit
    compete, in addition to the chosen one."""
    import torch

    from numpipe.ops.attention import attention

    if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2:
        torch.cuda.empty_cache()
    torch.manual_seed(process)
    shape = shape_of(case["shape"])
    causal = case["mask"] == "causal"
    dtype = getattr(torch, DTYPES[case["dtype"]])
    batches, heads, shared, queries, keys, depth = shape
    sets = min(
        bench.rotation_sets(nbytes(shape), torch.cuda.get_device_properties(0).L2_cache_size),
        MOST_SETS,
    )
    q, k, v = (
        Heads(sets, (batches, count, positions, depth), dtype).randomise().views
        for count, positions in ((heads, queries), (shared, keys), (shared, keys))
    )
    inputs = list(zip(q, k, v, strict=True))
    options = {
        OURS: {},
        **(
            {name: {"config": config} for name, config in candidates(depth, causal).items()}
            if configs
            else {}
        ),
    }
    outs = {name: Heads(sets, (batches, heads, queries, depth), dtype) for name in options}
    theirs, first = reference(inputs, causal, heads // shared), {}

    def by(name: str) -> Callable[[int], object]:
        return lambda i: attention(
            *inputs[i % sets], causal=causal, out=outs[name].views[i % sets], **options[name]
        )

    def poison() -> None:
        for out in outs.values():
            out.poison()

    def verify() -> dict[str, Any]:
        found = {name: out.views[0] for name, out in outs.items()} | {REFERENCE: theirs.outs[0]}
        errors = {name: relative_error(*inputs[0], o, causal) for name, o in found.items()}
        for name in outs:
            off = largest_difference(found[name], found[REFERENCE])
            if not errors[name] <= ERROR or not off <= DIFFERENCE:
                raise AssertionError(
                    f"{name}: relative error {errors[name]:.3e} of sampled rows; an element "
                    f"differs from {REFERENCE}'s by {off:.3e} of its size, {dict(case)}"
                )
            first[name] = found[name].clone()
        return {"errors": errors} | ({"config": chosen(shape, causal)} if configs else {})

    def check() -> None:
        for name, out in outs.items():
            out.check(name)
            again = out.views[0]
            if not bool(again.flatten()[0].isnan()) and not torch.equal(again, first[name]):
                raise AssertionError(f"{name} gave other bits than in its first call, {dict(case)}")

    return harness.Contest(
        {name: by(name) for name in outs} | {REFERENCE: theirs},
        sets,
        1e-12 * flops(shape, causal),
        poison,
        verify,
        check,
        {
            "positions": math.sqrt(queries * keys),
            "heads x batches": batches * heads,
            "Gflop": 1e-9 * flops(shape, causal),
        },
    )


def candidates(depth: int, causal: bool) -> dict[str, Any]:
    """Return the exact configs for a depth, by name."""
    from numpipe.ops.attention import CONFIGS, FITTING, SMALLER

    names = [*FITTING[depth, causal], *(pair[0] for pair in SMALLER[depth])]
    return {name: CONFIGS[name] for name in names if not CONFIGS[name].lazy}


def chosen(shape: Shape, causal: bool) -> str:
    """Return the name of the config that the op chooses."""
    import torch

    from numpipe.ops.attention import CONFIGS, choose

    batches, heads, _, queries, keys, depth = shape
    config = choose(
        depth,
        causal,
        True,
        queries,
        keys,
        batches * heads,
        torch.cuda.get_device_properties(0).multi_processor_count,
    )
    return next(name for name, known in CONFIGS.items() if known == config)


def largest_difference(o: Any, reference: Any) -> float:
    """Return the largest ``|o - reference| / (|reference| + its root mean square over the row)`` of
    any element, or NaN if there is one."""
    one, other = (x.reshape(-1, x.shape[-1]) for x in (o, reference))
    step, largest = max(1, CHUNK // o.shape[-1]), 0.0
    for at in range(0, len(one), step):
        ours, theirs = one[at : at + step].float(), other[at : at + step].float()
        scale = theirs.square().mean(1, keepdim=True).sqrt()
        found = float(((ours - theirs).abs() / (theirs.abs() + scale)).max())
        if math.isnan(found):
            return found
        largest = max(largest, found)
    return largest


def call_once(case: harness.Case) -> None:
    """Call a row once in a worker process, so that its kernel is compiled and kept on disk."""
    import torch

    from numpipe.ops.attention import attention

    batches, heads, shared, queries, keys, depth = shape_of(case["shape"])
    dtype = getattr(torch, DTYPES[case["dtype"]])
    q, k, o = (
        Heads(1, (batches, count, positions, depth), dtype).views[0]
        for count, positions in ((heads, queries), (shared, keys), (heads, queries))
    )
    attention(q, k, k, causal=case["mask"] == "causal", out=o)
    torch.cuda.synchronize()
    del q, k, o
    torch.cuda.empty_cache()  # many processes share the GPU's memory


# ---- options and output
def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--count", type=int, default=40, help="random shapes (default: %(default)s)"
    )
    parser.add_argument(
        "--lengths", type=listed, default=[str(LEAST), str(MOST)], metavar="LEAST,MOST"
    )
    parser.add_argument(
        "--depths",
        type=listed,
        default=list(map(str, DEPTHS)),
        help="comma-separated, of: 64, 128, 256",
    )
    parser.add_argument(
        "--configs", action="store_true", help="all exact configs that fit, not only the chosen one"
    )
    parser.add_argument(
        "--shapes", nargs="+", metavar="B,H/HK,S,D", help="these shapes instead of random ones"
    )
    parser.add_argument(
        "--masks",
        type=listed,
        default=list(MASKS),
        help="masks of --shapes, comma-separated, of: " + ", ".join(MASKS),
    )
    parser.add_argument(
        "--dtype", type=listed, default=["bf16"], help="comma-separated, of: " + ", ".join(DTYPES)
    )
    options = harness.parse_sweep(parser, arguments, dtype=DTYPES, masks=MASKS)
    try:
        options.lengths = tuple(map(int, options.lengths))
        options.depths = tuple(map(int, options.depths))
        if (
            len(options.lengths) != 2
            or not 0 < options.lengths[0] <= options.lengths[1]
            or not {*options.depths} <= {*DEPTHS}
        ):
            raise ValueError(
                f"--lengths {options.lengths}, --depths {options.depths}: expected LEAST,MOST, "
                f"and depths of {DEPTHS}"
            )
        options.cases = (
            random_cases(
                options.count, options.seed, options.dtype, options.lengths, options.depths
            )
            if not options.shapes
            else [
                {"shape": spell(shape_of(shape)), "mask": mask, "dtype": dtype, "of": "asked for"}
                for shape in options.shapes
                for mask in options.masks
                for dtype in options.dtype
            ]
        )
    except ValueError as error:
        parser.error(str(error))
    return options


def tell(rows: Sequence[bench.Row]) -> str:
    ours = [row for row in rows if row.name == OURS]
    text = (
        f"{harness.summary(ours, by=product_rows.kind)}\n\n"
        f"{product_rows.verdict(rows, OURS, MUST, AIM)}"
    )
    best = {str(dict(row.case)): row for row in sorted(rows, key=lambda row: row.ratio.median)}
    lost = sorted(
        (row.ratio.median / best[str(dict(row.case))].ratio.median, str(dict(row.case)))
        for row in ours
    )
    return "\n".join(
        [
            text,
            *(
                f"chosen over best {ratio:.3f}: {case}, best {best[case].name}"
                for ratio, case in lost[:10]
                if len(rows) > len(ours)
            ),
        ]
    )


def main() -> int:
    options = parse()

    def ahead() -> None:
        for case, error in harness.spread(call_once, [LOAD, *options.cases]):
            print(f"not called ahead: {case}: {error}", flush=True)

    return harness.sweep_or_read(
        "random_attention",
        options,
        lambda process, case: contest(process, case, configs=options.configs),
        name=OURS,
        reference=REFERENCE,
        load=LOAD,
        ahead=ahead,
        tell=tell,
    )


if __name__ == "__main__":
    harness.run(main)
