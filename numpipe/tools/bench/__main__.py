"""Print the table of a result file: ``python -m numpipe.bench show result.json``."""

from __future__ import annotations

import argparse
import sys

from ...diagnostics.errors import NumpipeError
from .report import read, table


def main(arguments: list[str] | None = None) -> int:
    """Print the tables of the files. Return the exit status: 2 if a file cannot be read."""
    parser = argparse.ArgumentParser("python -m numpipe.bench", description=__doc__)
    parser.add_argument("command", choices=("show",))
    parser.add_argument("files", nargs="+")
    try:
        for file in parser.parse_args(arguments).files:
            print(table(read(file).rows))
    except (NumpipeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
