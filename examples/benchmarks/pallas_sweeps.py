"""Results of a sweep over configurations of a Pallas kernel, shared with the other processes of a
benchmark's run."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.gettempdir()) / f"pallas_{os.getppid()}"
"""one folder per benchmark run, named after the process that started this one, with a file for each
sweep; all GPUs of a run are of one kind"""


def remembered(sweep: str, find: Callable[[], Any]) -> Any:
    """Return what `find` returned, as JSON values, when it was called for this sweep the first
    time."""
    known = FOLDER / (re.sub(r"\W+", "_", sweep) + ".json")
    if not known.exists():
        FOLDER.mkdir(exist_ok=True)
        part = known.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(find()), encoding="utf8")
        os.replace(part, known)  # atomic, because another process may be reading
    return json.loads(known.read_text(encoding="utf8"))
