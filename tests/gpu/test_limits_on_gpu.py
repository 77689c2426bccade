"""Loads and stores that end at a run-time row or column, ``ds(start, size, stop=n)``, on the
GPU."""

from __future__ import annotations

from tests.language.tiles.test_limits import (  # noqa: F401
    test_a_group_of_rows_ends_in_the_midst_of_a_tile,
    test_a_run_time_row_or_column_ends_loads_and_stores,
    test_rows_are_scattered_up_to_a_column,
)
