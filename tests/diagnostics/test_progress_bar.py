"""The progress bar: shown on a terminal or on request, and only if tqdm is installed."""

from __future__ import annotations

import importlib.util

import pytest

from numpipe.diagnostics.progress_bar import progress_bar


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("shown", [True, False, None])
def test_the_bar_is_shown_on_request(
    installed: bool,
    shown: bool | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tqdm")
    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with progress_bar("looking", shown, total=2, mininterval=0) as bar:
        bar.update()
        bar.update(0.5)
    assert ("looking" in capsys.readouterr().err) == (installed and shown is True)
