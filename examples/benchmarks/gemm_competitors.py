"""Competitors for matrix products: numpipe's kernels, cuBLAS through torch, Triton, Pallas.

A competitor launches its product on set i of the inputs, ``competitor(i)``, and has `outs` and
`poison`. One that cannot run here raises `Missing`, with the reason.
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import tempfile
from collections.abc import Callable
from typing import Any, Protocol

import harness
from gemm_suite import OURS, REFERENCE, dimensions, nbytes

from numpipe import bench
from numpipe.kernels.kernel import Kernel

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
PEERS = ("triton", "pallas")
EVENTS = 4000
"""events of a profile: more than a warpgroup has in 4096,4096,4096"""

Function = Callable[[Any, Any, Any], object]
"""called with a, b and the output"""


class Missing(Exception):
    """Raised for a competitor that does not run here, or not on this product, with the reason."""


class Competitor(Protocol):
    outs: list[Any]
    """the output of each set; None, or filled with NaN, if there was no call since `poison`"""

    def __call__(self, i: int) -> object: ...

    def poison(self) -> None:
        """Called before calls that are checked."""


class Inputs:
    """Normally distributed a (M, K) and b (N, K), or a batch of each, in enough sets that none is
    found in L2."""

    def __init__(self, shape: str, dtype: str, seed: int) -> None:
        import torch

        self.batches, self.m, self.n, self.k = dimensions(shape)
        self.dtype = getattr(torch, DTYPES[dtype])
        torch.manual_seed(seed)
        self.sets = bench.rotation_sets(
            nbytes(shape), torch.cuda.get_device_properties(0).L2_cache_size
        )
        self.a, self.b = (
            [self._normal(rows) for _ in range(self.sets)] for rows in (self.m, self.n)
        )

    def _normal(self, rows: int) -> Any:
        import torch

        shape = (self.batches, rows, self.k) if self.batches else (rows, self.k)
        return torch.randn(*shape, device="cuda").to(self.dtype)

    def output(self) -> Any:
        import torch

        shape = (self.batches, self.m, self.n) if self.batches else (self.m, self.n)
        return torch.empty(*shape, device="cuda", dtype=self.dtype)

    def renew(self) -> None:
        """Put new numbers in the first set."""
        self.a[0].copy_(self._normal(self.m))
        self.b[0].copy_(self._normal(self.n))


class InPlace(harness.InPlace):
    """A function that stores to a given output."""

    def __init__(self, inputs: Inputs, function: Function) -> None:
        outs = [inputs.output() for _ in range(inputs.sets)]
        super().__init__(outs, lambda i, out: function(inputs.a[i], inputs.b[i], out))


def competitors(
    against: str, inputs: Inputs, config: str | None, peers: list[str]
) -> dict[str, Competitor]:
    """Return the competitors by name: numpipe's first, the reference last. Peers that do not run
    here are skipped with a message."""
    if against == "gemm_ladder":
        return {
            name: InPlace(inputs, function)
            for name, function in (*rungs().items(), (REFERENCE, cublas(inputs)))
        }
    if against == "gemm_configs":
        return {
            name: InPlace(inputs, function)
            for name, function in (*configs(inputs).items(), (REFERENCE, cublas(inputs)))
        }
    if against != "gemm":
        return {
            name: InPlace(inputs, function) for name, function in _kernels(against, config).items()
        }
    found: dict[str, Competitor] = {OURS: InPlace(inputs, ours(inputs, config))}
    for peer in peers:
        try:
            found[{"triton": "Triton", "pallas": "Pallas"}[peer]] = {
                "triton": triton,
                "pallas": pallas,
            }[peer](inputs)
        except Missing as why:
            print(f"without {peer}: {why}", flush=True)
    return {**found, REFERENCE: InPlace(inputs, cublas(inputs))}


def ours(inputs: Inputs, config: str | None) -> Function:
    """Return examples/gemm_tuned.py with the config that its model chooses; with `config`, gemm.py
    or batched_gemm.py with that config."""
    if not config:
        import gemm_tuned

        print(
            "numpipe: "
            f"{gemm_tuned.choose(inputs.m, inputs.n, inputs.k, batches=inputs.batches or 1)}",
            flush=True,
        )
        return lambda a, b, out: gemm_tuned.matmul(a, b, out=out)
    module = importlib.import_module("batched_gemm" if inputs.batches else "gemm")  # of examples/
    return _call(module.batched_matmul if inputs.batches else module.matmul, module.Config, config)


def configs(inputs: Inputs) -> dict[str, Function]:
    """Return examples/gemm_tuned.py with the chosen config first, then with its named ones."""
    import gemm_tuned

    chosen = gemm_tuned.choose(inputs.m, inputs.n, inputs.k, batches=inputs.batches or 1)
    others = {name: cfg for name, cfg in gemm_tuned.CONFIGS.items() if cfg != chosen}
    return {
        OURS: ours(inputs, None),
        **{
            name: lambda a, b, out, cfg=cfg: gemm_tuned.matmul(a, b, out=out, cfg=cfg)
            for name, cfg in others.items()
        },
    }  # type: ignore[misc]


def rungs() -> dict[str, Function]:
    """Return the rungs of examples/gemm_ladder.py, the last one first, because the first competitor
    must be bit-identical over repeats."""
    import gemm_ladder

    return {
        name: lambda a, b, out, cfg=cfg: gemm_ladder.kernel(cfg)(a, b, out=out)  # type: ignore[misc]
        for name, cfg in reversed(gemm_ladder.RUNGS.items())
    }


def cublas(inputs: Inputs) -> Function:
    import torch

    if inputs.batches:
        return lambda a, b, out: torch.bmm(a, b.transpose(1, 2), out=out)
    return lambda a, b, out: torch.mm(a, b.T, out=out)


def triton(inputs: Inputs) -> Competitor:
    try:
        import triton_matmul
    except ImportError as error:
        raise Missing(f"{error}: pip install triton") from None
    found = InPlace(inputs, triton_matmul.matmul)
    try:
        found(0)  # runs the autotuner
    except Exception as error:
        raise Missing(f"its kernel did not run: {type(error).__name__}: {error}") from None
    print(f"Triton: {triton_matmul.best()}", flush=True)
    return found


def pallas(inputs: Inputs) -> Competitor:
    if inputs.batches:
        raise Missing("its kernel takes no batches")
    try:
        import pallas_matmul
    except ImportError as error:
        raise Missing(f"{error}: pip install 'jax[cuda13]' absl-py") from None
    try:
        found = pallas_matmul.Pallas(inputs.a, inputs.b)
        found(0)
    except Exception as error:
        raise Missing(
            f"its kernel did not run: {type(error).__name__}: {str(error)[:200]}"
        ) from None
    print(f"Pallas: {found.config}", flush=True)
    return found  # type: ignore[no-any-return]


def _call(kernel: Any, kind: Any, config: str | None) -> Function:
    """Return a kernel with a configuration, e.g. "128,256,64,3"."""
    chosen = kind(*map(int, config.split(","))) if config else kind()
    return lambda a, b, out: kernel(a, b, out=out, cfg=chosen)


def _kernels(against: str, config: str | None) -> dict[str, Function]:
    """Return variants of examples/gemm.py, the reference last."""
    import gemm

    plain = _call(gemm.matmul, gemm.Config, config)
    options = gemm.matmul.options

    def variant(**params: Any) -> Function:
        changed = dataclasses.replace(
            options, compiler_params=options.compiler_params.replace(**params)
        )
        return _call(Kernel(gemm.matmul.function, changed), gemm.Config, config)

    if against == "gemm_forms":
        import gemm_body

        return {"body form": _call(gemm_body.matmul, gemm.Config, config), "loop form": plain}
    if against == "gemm_chain":
        return {"chained": plain, "drained": variant(drain=True)}
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return {"recording": variant(profile_space=EVENTS, profile_dir=folder.name), "plain": plain}
