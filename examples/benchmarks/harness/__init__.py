"""Common code of the benchmarks in the parent folder: processes, sweeps, summaries, options.

A benchmark calls `main`, which measures cases in several processes and writes their result file,
or `sweep`, which measures hundreds of rows in minutes. `numpipe.bench` measures and defines the
file. ``results.py`` in the parent folder summarizes, merges, compares and draws such files.
"""

from .checks import (
    InPlace,
    check_repeats,
    check_written,
    compare_checked,
    relative_error,
    run_all,
)
from .files import Case, changes, groups, merge, summary
from .scripts import (
    answer,
    checked,
    listed,
    main_options,
    parse,
    parse_sweep,
    run,
    script,
    write,
)
from .spreads import distinct, spread
from .sweeps import Contest, SweepPlan, sweep, sweep_or_read
from .workers import PROCESS, cards, main

__all__ = [
    "PROCESS",
    "Case",
    "Contest",
    "InPlace",
    "SweepPlan",
    "answer",
    "cards",
    "changes",
    "check_repeats",
    "check_written",
    "checked",
    "compare_checked",
    "distinct",
    "groups",
    "listed",
    "main",
    "main_options",
    "merge",
    "parse",
    "parse_sweep",
    "relative_error",
    "run",
    "run_all",
    "script",
    "spread",
    "summary",
    "sweep",
    "sweep_or_read",
    "write",
]
