"""How CUDA meanings are defined: typers whose code follows their `yield`, or that return it
(`numpipe.core.numba.operations`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numpipe.core.numba import operations

CONTEXT = SimpleNamespace(get_dummy_value=lambda: "nothing")


def meaning(typer: Any) -> Any:
    return operations._in_two(typer)


def test_code_follows_the_yield_and_is_generated_for_each_call() -> None:
    asked: list[str] = []

    def typer(_context: Any, a: str, b: str) -> Any:
        asked.append("type")
        context, builder, args = yield f"({a}, {b})"
        asked.append("code")
        return context, builder, *args

    sig, codegen = meaning(typer)(None, "int32", "float32")
    assert sig == "(int32, float32)" and asked == ["type"]
    assert codegen(CONTEXT, "builder", sig, (1, 2)) == (CONTEXT, "builder", 1, 2) and asked == [
        "type",
        "code",
    ]
    assert (
        codegen(CONTEXT, "other", sig, (3, 4)) == (CONTEXT, "other", 3, 4)
        and asked == ["type", "code"] * 2
    )


def test_code_that_returns_nothing_has_no_value() -> None:
    def typer(_context: Any) -> Any:
        yield "()"

    assert meaning(typer)(None)[1](CONTEXT, None, "()", ()) == "nothing"


def test_a_typer_may_return_signature_and_code_and_none_for_types_it_is_not_of() -> None:
    def typer(_context: Any, kind: str) -> Any:
        if kind == "other":
            return None
        if kind == "known":
            return "sig", "code"
        yield "()"

    def plain(_context: Any) -> Any:
        return "sig", "code"

    assert meaning(typer)(None, "other") is None
    assert meaning(typer)(None, "known") == meaning(plain)(None) == ("sig", "code")


def test_a_typer_yields_once() -> None:
    def typer(_context: Any) -> Any:
        yield "()"
        yield "()"

    _, codegen = meaning(typer)(None)
    with pytest.raises(RuntimeError, match="typer.* yields twice"):
        codegen(CONTEXT, None, "()", ())
