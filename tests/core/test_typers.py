"""How CUDA meanings are defined: typers whose code follows their `yield`, or that return it
(`numpipe.core.numba.operations`)."""

from __future__ import annotations

from typing import Any

import pytest

from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numpipe.core import numba as nb
from numpipe.core.numba import operations


class FakeBuilder:
    """What Numba passes to a code generator."""


def meaning(typer: Any) -> Any:
    return operations._in_two(typer)


def test_code_follows_the_yield_and_is_generated_for_each_call() -> None:
    asked: list[str] = []

    def typer(a: str, b: str) -> Any:
        asked.append("type")
        builder, args = yield f"({a}, {b})"
        asked.append("code")
        return builder, *args

    sig, codegen = meaning(typer)("int32", "float32")
    assert sig == "(int32, float32)" and asked == ["type"]
    assert codegen("builder", (1, 2)) == ("builder", 1, 2) and asked == [
        "type",
        "code",
    ]
    assert codegen("other", (3, 4)) == ("other", 3, 4) and asked == ["type", "code"] * 2


def test_code_that_returns_nothing_has_no_value() -> None:
    def typer() -> Any:
        yield "()"

    sig, codegen = meaning(typer)()
    assert operations._of_operation(codegen)("context", FakeBuilder(), sig, ()) is nb.nothing


def test_a_typer_may_return_signature_and_code_and_none_for_types_it_is_not_of() -> None:
    def typer(kind: str) -> Any:
        if kind == "other":
            return None
        if kind == "known":
            return "sig", "code"
        yield "()"

    def plain() -> Any:
        return "sig", "code"

    assert meaning(typer)("other") is None
    assert meaning(typer)("known") == meaning(plain)() == ("sig", "code")


def test_a_typer_yields_once() -> None:
    def typer() -> Any:
        yield "()"
        yield "()"

    _, codegen = meaning(typer)()
    with pytest.raises(RuntimeError, match="typer.* yields twice"):
        codegen("builder", ())
