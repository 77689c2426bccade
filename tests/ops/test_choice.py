"""Choice of a product's config: which configs are possible, their results, how good the choice is
on each GPU, and how the model is fitted to measurements."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from benchmarks.choice_fit.__main__ import main
from benchmarks.choice_fit.fit import losses
from benchmarks.choice_fit.measurements import Group, arrays, read
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import launch, ops
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from numpipe.ops import configs
from numpipe.ops.choice import cost, ranking
from numpipe.ops.choice.gpu import Gpu, gpu_of, known
from numpipe.ops.choice.network import MOST, correction, features
from numpipe.ops.choice.ways import DEEP, fitted, ways, ways_of
from numpipe.ops.choice.ways import configs as every_config
from numpipe.ops.configs import Config, choose, space
from tests.kernels.compilers import compiles
from tests.kernels.covering import examples
from tests.kernels.kernels_for_tests import operands, product
from tests.kernels.product_configs import KINDS, fuses

# the package's attribute of this name is the function
OP = importlib.import_module("numpipe.ops.matmul")
ROWS = Path(__file__).parents[2] / "docs" / "results"


def card(name: str, sms: int, bandwidth: float) -> launch.Device:
    return launch.Device(0, name, (9, 0), sms, 13000, 232448, bandwidth)


# ---- possible configs
def test_large_tiles_have_several_numbers_of_staging_panels() -> None:
    """Each has as many slots as fit next to its panels: fewer panels with the same slots have no
    advantage."""

    def of(tm: int, tn: int, turns: bool) -> set[tuple[float, float]]:
        each = ways()
        at = (
            (each.tm == tm)
            & (each.tn == tn)
            & (each.turns == turns)
            & (each.stream == 0)
            & (each.along * each.parts == 1)
        )
        return set(zip(each.panels[at], each.slots[at], strict=True))

    assert of(128, 256, False) == {(2, 4), (4, 3)}
    assert of(128, 192, True) == {(1, 5), (2, 4), (3, 4)}
    assert of(128, 128, False) == {(2, 6)}


def test_every_way_is_a_config_that_fits_an_sm() -> None:
    for config in every_config():
        assert config.slots is not None and 3 <= config.slots <= replace(config, slots=None).depth
        assert config.cluster * config.across <= 8 and config.tn % (8 * config.cluster) == 0


@given(
    st.integers(1, 11000),
    st.integers(1, 2048),
    st.integers(1, 2048),
    st.sampled_from((16, 32, 64, 128)),
)
@settings(max_examples=examples(30))
def test_the_space_begins_with_the_choice_and_holds_different_configs(
    m: int, n: int, k: int, aligned: int
) -> None:
    found = space(m, 8 * n, 8 * k, aligned=aligned)
    assert len(set(found)) == len(found) == 16 and found[0] == choose(
        m, 8 * n, 8 * k, aligned=aligned
    )
    assert not any(
        config.turned for config in space(m, 8 * n, 8 * k, aligned=aligned, turned=False)
    )
    several = [
        (each.tm, each.tk, each.schedule, each.turned, each.split, each.cluster, each.across)
        for each in space(m, 8 * n, 8 * k, aligned=aligned, most=64, widths=3)
    ]
    assert max(map(several.count, several)) <= 3 < 64 == len(several)


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from((78, 114, 132)),
    st.integers(1, 9),
)
@settings(max_examples=examples(30))
def test_the_choice_is_one_that_the_product_may_have(
    m: int, n: int, k: int, sms: int, batches: int
) -> None:
    gpu = gpu_of(card("a part of a GPU", sms, 0.0))
    # lanes would store the batches of a transposed product
    assert choose(m, n, k, gpu, batches).turned <= (batches == 1)
    fused = choose(m, n, k, gpu, fused=True)
    assert fuses(fused) and fused.strip >= 32 // fused.cluster
    assert choose(m, n, k, gpu, fixed=True).split is None
    for crosswise in ((False, True), (True, False), (True, True)):
        config = choose(m, n, k, gpu, crosswise=crosswise)
        assert config.tn % 32 == 0 or not crosswise[not config.turned]


def test_a_product_of_nothing_has_a_config_too() -> None:
    assert choose(0, 8, 8) == choose(8, 8, 0) == Config()


# ---- results
@pytest.mark.variants(1, thorough=5)
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_every_kind_multiplies(config: Config) -> None:
    for m, n, k in ((130, 200, 328), (1, 136, 1000)):
        a, b = operands(m, n, k)
        for right in (np.ascontiguousarray(b.T), b.T):
            c = ops.matmul(a, right, config=config, target="sim")
            np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize(
    "shape",
    [(70, 200, 1200), (1, 96, 3000), (300, 520, 136), (33, 1472, 760), (400, 136, 640)],
    ids=str,
)
def test_configs_of_the_space_multiply(shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    for config in space(*shape)[::6]:
        c = ops.matmul(a, b.T, config=config, target="sim")
        np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("config", [KINDS[7], KINDS[10]], ids=str)
def test_the_ctas_of_a_cluster_hand_over_each_for_itself_in_any_schedule(config: Config) -> None:
    a, b = operands(130, 200, 328)
    assert (result := numpipe.verify(OP.kernel(config), a, b, schedules=6)), str(result)


@pytest.mark.variants(0, thorough=3)
@compiles
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_every_kind_passes_the_build_gate(config: Config) -> None:
    array = numpipe.ArrayType((512, 512), ml_dtypes.bfloat16)
    assert gate.findings(OP.kernel(config).compiled(array, array)) == ()


@pytest.mark.variants(0, thorough=1)
@compiles
@pytest.mark.parametrize(
    "shape", [(1, 96, 11344), (377, 13712, 8152), (158, 928, 8776), (2756, 400, 6368)], ids=str
)
def test_configs_of_the_space_pass_the_build_gate(shape: tuple[int, int, int]) -> None:
    array = numpipe.ArrayType((512, 512), np.float16)
    for config in space(*shape, aligned=math.gcd(2 * shape[2], 128))[::8]:
        assert gate.findings(OP.kernel(config).compiled(array, array)) == (), config


# ---- quality of the choice
SOME, ALL = 8, pytest.param(1, marks=pytest.mark.thorough)
"""every eighth group of measured times, and each group"""


@functools.cache
def measured(gpu: str) -> tuple[Gpu, list[Group]]:
    """Return the measurements of a GPU."""
    ((found, groups),) = read([ROWS / f"product_configs_{gpu}.jsonl.gz"]).values()
    return found, groups


def mean(lost: np.ndarray) -> float:
    return math.exp(np.log(lost).mean())


@pytest.mark.parametrize("every", [SOME, ALL])
def test_the_choice_among_measured_configs_is_near_the_fastest(every: int) -> None:
    gpu, groups = measured("h200")
    lost = losses(gpu, groups[::every])
    by_count = losses(gpu, groups[::every], corrects=False)
    assert mean(lost) < 1.02 < 1.03 < mean(by_count) < 1.06
    assert max(lost) < 1.25 and (lost > 1.1).mean() < 0.01


def test_an_h100_has_a_file_that_is_better_for_it_than_an_h200s() -> None:
    gpu, groups = measured("h100")
    assert mean(losses(gpu, groups)) < 1.015 < 1.017 < mean(losses(gpu_of(), groups))


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_each_gpu_that_was_measured_has_a_file_that_is_found_by_its_name(gpu: str) -> None:
    found, _ = measured(gpu)
    assert gpu_of(card(found.name, found.sms, 0.0)) is known()[found.name]


def test_rows_off_a_sector_of_the_l2_cost_more_than_rows_off_a_line() -> None:
    gpu, way = gpu_of(), ways_of([Config(128, 192, slots=5, panels=1, schedule="pingpong")])
    of = [cost.Product(1622, 14944, 1512, False, aligned) for aligned in (16, 32, 128)]
    off, sector, line = (float(cost.cycles(way, each, gpu)[0]) for each in of)
    assert off > 1.2 * sector and sector == line
    told = [features(way, each, np.ones(1), gpu)[:, 0] for each in of]
    assert len({tuple(each) for each in told}) == 3


@pytest.mark.parametrize(
    ("k", "padded", "aligned"), [(72, 72, 16), (72, 80, 32), (72, 128, 128), (96, 96, 64)]
)
def test_the_choice_depends_on_where_the_operands_rows_begin(
    k: int, padded: int, aligned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(OP, "choose", lambda *sizes: found.append(sizes[6]) or choose(*sizes))
    a, b = (np.zeros((128, padded), np.float16)[:, :k] for _ in range(2))
    ops.matmul(a, b.T, target="sim")
    assert found == [aligned]
    assert choose(128, 128, k) == choose(128, 128, k, aligned=math.gcd(2 * k, 128))


@pytest.mark.parametrize("every", [SOME, ALL])
def test_no_config_would_do_for_all(every: int) -> None:
    best = Counter(
        group.configs[int(np.argmin(group.seconds))] for group in measured("h200")[1][::every]
    )
    assert max(best.values()) < 0.1 * best.total()


def test_far_from_measurements_the_correction_is_bounded() -> None:
    """The correction is finite everywhere, and small even if the network returns nonsense."""
    gpu = gpu_of()
    for m, n, k in ((1, 8, 8), (1, 16384, 16384), (11000, 16384, 8), (10**5, 10**5, 64)):
        product = cost.Product(m, n, k, False, 128)
        seen = features(ways(), product, cost.cycles(ways(), product, gpu), gpu)
        assert np.isfinite(correction(seen, gpu.layers)).all()
        wild = correction(seen, tuple(1e3 * layer for layer in gpu.layers))
        assert np.abs(wild).max() == pytest.approx(MOST)


@pytest.mark.parametrize("every", [SOME, ALL])
def test_the_measured_corrections_are_below_the_bound(every: int) -> None:
    gpu, groups = measured("h200")
    rows = arrays(groups[::every])
    counted = cost.cycles(rows.ways, rows.product, gpu)
    assert np.abs(np.log(rows.cycles / counted)).max() < MOST


def test_operands_that_are_read_once_are_distinguished() -> None:
    assert (
        choose(4, 8192, 8192).once
        and choose(8192, 8, 8192).once
        and not choose(4096, 4096, 4096).once
    )


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="the CUDA compiler is not installed")
def test_operands_that_are_read_once_leave_the_cache_first() -> None:
    a, b = np.ones((4, 64), np.float16), np.ones((8, 64), np.float16)
    # either both operands' copies have the policy as an operand, or none
    for once in (True, False):
        ptx = OP.kernel(Config(64, 8, 64, None, panels=1, wgs=1, once=once)).inspect("ptx", a, b)
        loads = [
            line
            for line in ptx.splitlines()
            if "cp.async.bulk.tensor" in line and "shared::cluster.global" in line
        ]
        assert loads and all(("cache_hint" in line) == once for line in loads)


@pytest.mark.parametrize(
    ("cluster", "ctas"), [(1, 132), (2, 132), (3, 117), (5, 110), (7, 105), (8, 120)]
)
def test_clusters_of_some_sizes_leave_sms_idle(cluster: int, ctas: int) -> None:
    of = ways_of(
        [
            Config(
                64,
                8 * cluster,
                64,
                4,
                panels=1,
                wgs=1,
                cluster=cluster,
                split="cluster" if cluster > 1 else None,
            )
        ]
    )
    assert cost.work(of, cost.Product(8192, 8192, 8192, False, 128), gpu_of()).ctas == ctas


def test_products_stay_in_flight_where_a_slot_can_be_spared() -> None:
    for config in [
        each
        for sizes in ((1, 8192, 8192), (1000, 512, 3584), (2000, 3000, 4000))
        for each in space(*sizes, most=24)
    ]:
        spare = (
            config.schedule == "cooperative"
            and config.tk < 256
            and (config.wgs == 1 or config.depth >= DEEP)
        )
        assert config.delay == (1 if spare else None), config


def test_the_transpose_is_computed_only_where_it_is_expected_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranking, "cycles", lambda of, *_: np.ones_like(of.tm))
    monkeypatch.setattr(ranking, "features", lambda of, product, *_: product.turned)
    monkeypatch.setattr(
        ranking, "correction", lambda turned, _: np.log(np.where(turned, 1 - gain, 1.0))
    )
    monkeypatch.setattr(ranking, "LOOKED_AT", 2 * len(ways().tm))
    for gain, turned in ((0.005, False), (0.02, True)):
        assert space(512, 512, 512, most=1)[0].turned == turned


def test_concurrent_tiles_form_squares_for_the_sms_of_a_gpc() -> None:
    """Sixteen consecutive CTAs have 4 x 4 tiles; of clusters, every eighth one is in the same
    GPC."""

    def group(tm: int, tn: int, above: int, across: int, rows: int, columns: int) -> int:
        config = Config(tm, tn, cluster=above, across=across)
        return fitted(config, False, rows, columns, 132).group

    assert group(64, 64, 1, 1, 1024, 512) == group(128, 128, 1, 1, 1024, 1024) == 4
    assert group(64, 128, 1, 2, 1024, 512) == 4 and group(64, 128, 1, 2, 512, 1024) == 2
    assert group(64, 128, 2, 1, 1024, 512) == 8  # in rows of tiles; a cluster has two
    assert group(128, 256, 1, 1, 8192, 8192) == 12  # many rounds: shared blocks are in the L2
    assert group(128, 256, 2, 1, 8192, 8192) == 16 and group(192, 128, 2, 1, 8192, 8192) == 10
    assert group(256, 8, 1, 1, 8192, 8) == 1 and group(64, 64, 1, 2, 8192, 64) == 8


# ---- which GPU's file is used
@pytest.mark.parametrize(
    ("name", "sms", "bandwidth", "like"),
    [
        ("NVIDIA H200", 132, 4.9e12, "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", 132, 4.9e12, "NVIDIA H100 80GB HBM3"),  # found by name
        ("NVIDIA H100 PCIe", 114, 2.0e12, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA GH200 480GB", 132, 4.0e12, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H200 NVL", 132, 4.8e12, "NVIDIA H200"),
    ],
)
def test_a_gpu_without_a_file_uses_the_file_of_the_nearest_one(
    name: str, sms: int, bandwidth: float, like: str
) -> None:
    found, file = gpu_of(card(name, sms, bandwidth)), known()[like]
    assert (found.name, found.sms) == (like, sms)
    assert found.layers is file.layers and found.constants is file.constants
    assert (found.at_once <= sms).all() and found.at_once[0] == sms
    assert choose(300, 400, 512, found) == space(300, 400, 512, found)[0]


def test_simulated_targets_take_an_h200s() -> None:
    assert gpu_of() is gpu_of(None) is known()["NVIDIA H200"]
    assert choose(300, 400, 500) == choose(300, 400, 500, known()["NVIDIA H200"])


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    gpu = replace(gpu_of(), name="mine", sms=7, bandwidth=2.5)
    gpu.save(tmp_path / "mine.npz")
    again = Gpu.load(tmp_path / "mine.npz")
    assert (again.name, again.sms, again.bandwidth) == ("mine", 7, 2.5)
    assert again.constants == gpu.constants
    for one, other in zip((again.at_once, *again.layers), (gpu.at_once, *gpu.layers), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- cost of the choice
SHAPES = """
import random, time
from numpipe.ops.configs import choose
draw = random.Random(7)
shapes = [(draw.randrange(1, 9000), 8 * draw.randrange(8, 2048), 8 * draw.randrange(8, 2048))
          for _ in range(200)]
choose(8, 8, 8)
"""


def printed(program: str, **environment: str) -> str:
    """Return what a program prints in its own process."""
    return subprocess.run(
        [sys.executable, "-c", SHAPES + program],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_new_size_takes_about_a_millisecond() -> None:
    """In CPU time of this thread, because other processes use the machine too.

    It was 11 ms with one thread of BLAS, and 140 ms with two.
    """
    took = printed("""
took = []
for shape in shapes:
    begun = time.thread_time()
    choose(*shape)
    took.append(time.thread_time() - begun)
print(sorted(took)[100])
""")
    assert float(took) < 4e-3


def test_threads_of_blas_have_no_part_in_the_choice() -> None:
    """They neither change the choice nor work on it; a large product shows that they would be
    detected."""
    program = """
import numpy as np
a = np.ones((700, 700), np.float32)
for work in (lambda: [choose(*shape) for shape in shapes], lambda: [a @ a for _ in range(20)]):
    begun = time.process_time() - time.thread_time()
    found = work()
    print(time.process_time() - time.thread_time() - begun)
    if isinstance(found[0], tuple(map(type, [choose(8, 8, 8)]))):
        print(found)
"""
    threads = ("1", "4")
    several = [printed(program, OPENBLAS_NUM_THREADS=each).splitlines() for each in threads]
    (others, alone, _), (more, again, seen) = several
    assert alone == again
    assert abs(float(others)) < 0.02 and abs(float(more)) < 0.02 < float(seen)


def test_old_names_refer_to_the_choice() -> None:
    assert configs.__all__ == ["Config", "choose", "space"]
    assert (configs.choose, configs.space) == (ranking.choose, ranking.space)


# ---- fitting
HEAD = {"gpu": "a GPU", "sms": 132, "bandwidth": 3e12}
CONFIGS = [
    Config(128, width, 64, slots, schedule, 2, group=12, policy="evict_first")
    for width, slots, schedule in (
        (64, 6, "cooperative"),
        (128, 6, "cooperative"),
        (128, 5, "pingpong"),
        (192, 4, "cooperative"),
        (192, 4, "pingpong"),
        (256, 4, "cooperative"),
    )
]


def rows_of(gpu: Gpu, path: Path, products: int = 60, head: object = HEAD) -> Path:
    """Write the times of a GPU that follows the model, with three times the latency.

    Its stores cost twenty times as much.
    """
    by = gpu.constants
    truth = replace(
        gpu,
        constants=by._replace(latency=3 * by.latency, store=20 * by.store, launch=by.launch / 2),
    )
    draw, of, lines = np.random.default_rng(3), ways_of(CONFIGS), [json.dumps(head)]
    for m, n, k in draw.integers(8, 500, (products, 3)) * 8:
        took = cost.cycles(of, cost.Product(int(m), int(n), int(k), False, 16), truth) / 1.7e9
        lines += [
            json.dumps(
                {"shape": [int(m), int(n), int(k)], "config": repr(config), "seconds": float(each)}
            )
            for config, each in zip(CONFIGS, took, strict=True)
        ]
        lines.append(
            json.dumps({"shape": [int(m), int(n), int(k)], "config": "cuBLAS", "seconds": 1.0})
        )
        lines.append(lines[-2].replace("}", ', "skip": "judged"}'))
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return path


def test_a_fit_finds_which_config_is_faster_on_another_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, file = rows_of(gpu_of(), tmp_path / "rows.jsonl"), tmp_path / "mine.npz"
    ((start, groups),) = read([rows]).values()
    assert {len(group.seconds) for group in groups} == {len(CONFIGS)}  # no cuBLAS, none skipped
    assert main(["fit", str(rows), "-o", str(file)]) == 0
    assert "a GPU: 360 times of 60 products" in capsys.readouterr().out
    fitted = Gpu.load(file)
    assert (fitted.name, fitted.sms, fitted.bandwidth) == ("a GPU", 132, 3e12)
    assert mean(losses(fitted, groups)) < 1.003 < 1.02 < mean(losses(start, groups))
    by = fitted.constants
    assert by.store > 3 * start.constants.store and by.latency > 1.2 * start.constants.latency
    assert main(["evaluate", str(rows)]) == 0
    told = capsys.readouterr().out
    assert "products held out of the fit: the chosen config takes 1.0" in told


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"shape": [1, 8, 8]}, "the first line must have 'gpu', 'sms' and 'bandwidth'"),
        (None, "No such file"),
    ],
)
def test_a_file_that_has_no_rows_of_a_gpu_is_an_error(
    head: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    if head is not None:
        rows_of(gpu_of(), path, 2, head)
    assert main(["evaluate", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_the_commands_of_the_page_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run up to the missing files."""
    page = (ROWS.parent / "tune_another_gpu.md").read_text(encoding="utf8")
    commands = [line.split()[3:] for line in page.splitlines() if "-m choice_fit" in line]
    monkeypatch.chdir(tmp_path)
    assert {command[0] for command in commands} == {"fit", "evaluate"} and len(commands) == 4
    for command in commands:
        assert main(command) == 2 and "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # a command with a mistake
        main(["fit", "rows.jsonl"])
