"""The one module that touches the internals of Numba and llvmlite.

Everything else reaches the compiler through the names below, so that a change of backend changes one file. It is
imported by the first compile, never by ``import numpipe``.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from llvmlite import ir
from llvmlite.ir.values import ArgumentAttributes
from numba import cuda
from numba.core.errors import NumbaError  # base of numba.cuda's, and what the types it borrows raise
from numba.cuda import cgutils, codegen, compiler, dispatcher, types
from numba.cuda.core import config, typed_passes, untyped_passes
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import AnalysisPass, register_pass
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudadrv import nvvm
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.extending import lower_builtin, lower_cast, register_model
from numba.cuda.target import CUDATargetContext
from numba.cuda.typing import signature
from numba.cuda.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    make_intrinsic_template,
    make_overload_template,
)

from .errors import NumpipeError

__all__ = [
    "AbstractTemplate", "AttributeTemplate", "NumbaError", "RefType", "TypingError", "cgutils", "cuda", "ir",
    "iternext_impl", "lower_builtin", "lower_cast", "lowering_registry", "models", "numba_ir", "register_model", "signature",
    "types", "typing_registry",
]

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
f32 = ir.FloatType()
void = ir.VoidType()
SM_90A = (9, 0, "a")


# ---- values and inline assembly -------------------------------------------------------------------------------
def const(value: int, type: Any = i32) -> Any:
    return ir.Constant(type, value)


def emit_asm(builder: Any, result: Any, args: Sequence[Any], text: str, constraints: str) -> Any:
    """One PTX statement. `convergent` keeps LLVM from moving it across divergent control flow."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(ir.InlineAsm(fnty, text, constraints, side_effect=True), list(args), attrs=("convergent",))


def join(builder: Any) -> None:
    """Where lanes that went apart meet: an empty statement, which LLVM may not copy into their paths.

    Without it a loop's end that follows is copied into both. The loop's counter then is one value in one path and another in the
    other, and ptxas takes it, and all that depends on it, as different in the lanes: no uniform registers, a shuffle for each
    descriptor, BSSY and WARPSYNC around each branch. ptxas itself does that behind a predicated statement, which it makes a branch;
    there a bar.warp.sync keeps the ways together, and is a NOP, or nothing, in the machine code.
    """
    emit_asm(builder, ir.VoidType(), [], "", "")


def pure_asm(result: Any, args: Sequence[Any], text: str, constraints: str) -> Any:
    """PTX without side effects: LLVM may move, merge or drop it."""
    return ir.InlineAsm(ir.FunctionType(result, list(args)), text, constraints, side_effect=False)


def global_pointer(type: Any) -> Any:
    """A pointer into global memory."""
    return ir.PointerType(type, 1)


def nothing(context: Any) -> Any:
    """The value of a call that returns None."""
    return context.get_dummy_value()


def external(builder: Any, name: str, result: Any, args: Sequence[Any] = ()) -> Any:
    """Call a symbol that the kernel's entry module defines (see `define`): how shared helpers ask their kernel."""
    fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(fn, list(args))


@contextlib.contextmanager
def define(module: Any, name: str, result: Any, args: Sequence[Any] = ()) -> Iterator[Any]:
    """Define an always-inlined function in `module`; yields ``(builder, arguments)``.

    Weak, not linkonce: the linker meets the entry module first, and would drop what no function there calls.
    """
    fn = cgutils.get_or_insert_function(module, ir.FunctionType(result, list(args)), name)
    fn.linkage = "weak_odr"
    fn.attributes.add("alwaysinline")
    yield ir.IRBuilder(fn.append_basic_block("entry")), fn.args


def thread_index(builder: Any) -> Any:
    """%tid.x through the LLVM intrinsic: unlike inline assembly it folds, which role guards rely on."""
    return external(builder, "llvm.nvvm.read.ptx.sreg.tid.x", i32)


def block_index(builder: Any) -> tuple[Any, Any, Any]:
    """%ctaid.x, y and z."""
    x, y, z = (external(builder, f"llvm.nvvm.read.ptx.sreg.ctaid.{axis}", i32) for axis in "xyz")
    return x, y, z


def c_string(context: Any, builder: Any, text: str) -> Any:
    """Generic address of a constant string, as C's functions want it."""
    return context.insert_string_const_addrspace(builder, text)


def vprintf(context: Any, builder: Any, format: str, values: Sequence[Any]) -> None:
    """C's printf by the lanes that are here; `values` are i32, i64, double and string addresses, each naturally aligned."""
    struct = cgutils.make_anonymous_struct(builder, list(values))
    buffer = builder.bitcast(cgutils.alloca_once_value(builder, struct), i8.as_pointer())
    args = [c_string(context, builder, format), buffer]
    external(builder, "vprintf", i32, args)


def assert_fail(context: Any, builder: Any, message: str, file: str, line: int, function: str) -> None:
    """What a failed C assert calls: the lane prints "file:line: function: … Assertion `message` failed" and stops the kernel."""
    text = [c_string(context, builder, part) for part in (message, file, function)]
    external(builder, "__assertfail", void, [*text[:2], const(line), text[2], const(1, i64)])


def shared_base(builder: Any, name: str = "numpipe_smem") -> Any:
    """Shared-space address (32 bit) of the kernel's dynamic shared memory."""
    module = builder.module
    array = module.globals.get(name)
    if array is None:
        array = ir.GlobalVariable(module, ir.ArrayType(i8, 0), name, addrspace=3)
        array.linkage = "external"
        array.align = 1024
    return builder.ptrtoint(array, i32)


# ---- types of operations --------------------------------------------------------------------------------------
Typer = Callable[..., Any]


def operation_type(key: Any, name: str, typer: Typer) -> Any:
    """Numba type of a callable whose meaning is `typer(typing_context, *types) -> (signature, codegen) | None`."""
    template = make_intrinsic_template(key, typer, name, prefer_literal=True)
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(typer).parameters.values()):
        fixed = template.generic

        def generic(self: Any, args: Any, kws: Any) -> Any:
            sig = fixed(self, args, kws)  # with a Python signature, lowering would pack *args into a tuple
            return None if sig is None else sig.replace(pysig=None)

        template.generic = generic
    return types.Function(template)


def helper_type(key: Any, implementation: Callable[..., Any]) -> Any:
    """Numba type of a Python function compiled from its own source; constant arguments stay literal."""

    def same(*args: Any) -> Any:
        return implementation

    return types.Function(make_overload_template(key, same, {}, False, "never", prefer_literal=True))


def call(context: Any, builder: Any, function: Any, argtypes: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """Call `function` (an operation, a helper or its Numba type) while generating code -> (return type, value).

    Arguments that are left out must be None by default.
    """
    fnty = function if isinstance(function, types.Type) else function._numba_type_
    sig = fnty.get_call_type(context.typing_context, tuple(argtypes), {})
    left_out = sig.args[len(args):]
    assert all(ty == types.none for ty in left_out), sig
    values = [v if t == s else context.cast(builder, v, t, s)
              for v, t, s in zip(args, argtypes, sig.args[:len(args)], strict=True)] + [nothing(context) for _ in left_out]
    return sig.return_type, context.get_function(fnty, sig)(builder, values)


def call_value(context: Any, builder: Any, function: Any, value: Any, argtypes: Sequence[Any],
               args: Sequence[Any]) -> tuple[Any, Any]:
    """Call a callable value of type `function` while generating code -> (return type, value)."""
    sig = function.get_call_type(context.typing_context, tuple(argtypes), {})
    values = [context.cast(builder, v, t, s) for v, t, s in zip(args, argtypes, sig.args, strict=True)]
    bound = [] if isinstance(function, types.Function) else [value]
    return sig.return_type, context.get_function(function, sig)(builder, bound + values)


def tuple_of(like: Any, parts: Sequence[Any]) -> Any:
    """The type of a tuple of these parts; of `like`'s class where that is a named tuple."""
    if isinstance(like, types.BaseNamedTuple):
        return types.BaseTuple.from_types(tuple(parts), like.instance_class)
    return types.Tuple(tuple(parts))


def immediate(value: int) -> tuple[Any, Any]:
    """(type, value) of a compile-time int as an argument of `call`."""
    return types.literal(value), const(value, i64)


def returns(typing_context: Any, function: Any, argtypes: Sequence[Any]) -> Any:
    """What `function` returns for arguments of these types."""
    fnty = function if isinstance(function, types.Type) else function._numba_type_
    return fnty.get_call_type(typing_context, tuple(argtypes), {}).return_type


def attribute(type_class: type, name: str, typer: Callable[[Any], Any],
              codegen: Callable[[Any, Any, Any, Any], Any]) -> None:
    """Attribute `name` of values of `type_class`: `typer(type) -> type`, `codegen(context, builder, type, value)`."""

    @typing_registry.register_attr
    class Attribute(AttributeTemplate):  # type: ignore[misc]
        key = type_class

    setattr(Attribute, f"resolve_{name}", lambda self, ty: typer(ty))
    lowering_registry.lower_getattr(type_class, name)(codegen)


def constant_attribute(type_class: type, name: str, value: Callable[[Any], Any]) -> None:
    """Attribute `name` whose value ``value(type)``, an int, a string or a tuple of them, is known at compile time."""
    def typer(ty: Any) -> Any:
        found = value(ty)
        return types.Tuple([types.literal(v) for v in found]) if isinstance(found, tuple) else types.literal(found)

    attribute(type_class, name, typer, lambda context, builder, ty, _:
              context.get_constant_generic(builder, typer(ty), value(ty)) if isinstance(value(ty), tuple) else
              context.get_constant_undef(typer(ty)))


def method(type_class: type, name: str, function: Any) -> None:
    """Method `name` of values of `type_class`: ``function(value, *args)`` for an operation `function`."""

    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"{type_class.__name__}.{name}"
        prefer_literal = True

        def generic(self, args: Any, kws: Any) -> Any:
            sig = function._numba_type_.get_call_type(self.context, (self.this, *args), kws)
            return None if sig is None else signature(sig.return_type, *sig.args[1:], recvr=self.this)

    def resolve(self: Any, ty: Any) -> Any:
        return types.BoundFunction(Method, ty)

    @typing_registry.register_attr
    class Attribute(AttributeTemplate):  # type: ignore[misc]
        key = type_class

    setattr(Attribute, f"resolve_{name}", resolve)

    @lowering_registry.lower(Method.key, type_class, types.VarArg(types.Any))
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call(context, builder, function, (sig.recvr or sig.args[0], *sig.args[len(sig.args) - len(args) + 1:]), args)[1]


def binary(function: Any, typer: Callable[..., Any], literals: bool = False) -> None:
    """A Python operator: `typer(*types) -> (signature, codegen) | None`, asked before Numba's own meanings.

    `literals`: int literals come as such first, else as int64.
    """
    chosen: dict[Any, Any] = {}

    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        key = function
        prefer_literal = literals

        def generic(self, args: Any, kws: Any) -> Any:
            answer = typer(*args)
            if answer is None:
                return None
            sig, codegen = answer
            if sig.args not in chosen:
                chosen[sig.args] = codegen
                lowering_registry.lower(function, *sig.args)(codegen)
            return sig


def literal(ty: Any) -> Any:
    """Python value of a literal type (tuples of literals included); raises TypingError for a run-time value."""
    if isinstance(ty, types.BaseTuple):
        return tuple(literal(t) for t in ty)
    if isinstance(ty, types.NoneType):
        return None
    if not hasattr(ty, "literal_value"):
        raise TypingError(f"a compile-time constant is needed here, not a run-time {ty}")
    return ty.literal_value


def unliteral(ty: Any) -> Any:
    """The type that a literal has as a run-time value: an int is an int32."""
    if isinstance(ty, types.BaseTuple):
        return tuple_of(ty, [unliteral(t) for t in ty])
    if isinstance(ty, types.IntegerLiteral) and -(1 << 31) <= ty.literal_value < 1 << 31:
        return types.int32
    return types.unliteral(ty)


class _ByVal(ArgumentAttributes):  # type: ignore[misc]
    """`byval` as LLVM 7 (the NVVM dialect of sm_90) spells it: without a type."""

    def _expand(self, name: str, typ: Any) -> str:
        return name


def grid_constant(builder: Any, value: Any, align: int = 64) -> Any:
    """Mark a kernel's pointer parameter as passed by value in parameter space, never copied to local memory.

    One annotation node only: of several, NVVM honours the first and silently copies the others.
    """
    function = builder.function
    if isinstance(value, ir.Argument) and value.parent is function:
        attributes = _ByVal()
        attributes.add("byval")
        attributes.align = align
        value.attributes = attributes
        position = [a is value for a in function.args].index(True)
        module = builder.module
        numbers = ir.MDValue(module, [const(position)], name=str(len(module.metadata)))
        node = ir.MDValue(module, [function, ir.MetaDataString(module, "grid_constant"), numbers],
                          name=str(len(module.metadata)))
        cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(node)
    return value


def cluster_dims(builder: Any, value: Any, dims: Sequence[int]) -> None:
    """Say of the kernel whose parameter `value` is how many CTAs its clusters have: ptxas leaves out code for none at all."""
    function = builder.function
    if isinstance(value, ir.Argument) and value.parent is function:
        module = builder.module
        for axis, size in zip("xyz", dims, strict=True):
            node = module.add_metadata((function, ir.MetaDataString(module, f"cluster_dim_{axis}"), const(size)))
            cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(node)


# ---- compiling without a GPU ----------------------------------------------------------------------------------
class _Hopper:
    """The device every numpipe kernel is compiled for, whatever this machine holds."""

    compute_capability = SM_90A
    id = 0
    name = b"sm_90a"


Typed = Callable[[Any, dict[str, Any]], None]
"""is told of each function that was typed: its IR, in SSA form, and the type of each variable"""
_told: list[Typed] = []


@register_pass(mutates_CFG=False, analysis_only=True)
class _Tell(AnalysisPass):  # type: ignore[misc]
    """Tells of a function as long as its phi nodes are there."""

    _name = "numpipe_tell"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for told in _told:
            told(state.func_ir, state.typemap)
        return False


class _Compiler(compiler.CUDACompiler):  # type: ignore[misc]
    """Numba's passes without those for Python that a kernel is not written in: each is milliseconds of every function.

    `compile.subset` refuses closures, comprehensions and `with`; nothing asks Numba to inline or to unroll over types; literal
    types are given where they are; the array expressions and string keys that are rewritten after inference have no values here.
    """

    _LEFT_OUT = (untyped_passes.WithLifting, untyped_passes.InlineClosureLikes, untyped_passes.MakeFunctionToJitFunction,
                 untyped_passes.InlineInlinables, untyped_passes.FindLiterallyCalls, untyped_passes.LiteralUnroll,
                 untyped_passes.LiteralPropagationSubPipelinePass, typed_passes.InlineOverloads, typed_passes.NopythonRewrites)

    _managers: ClassVar[list[Any]] = []
    """the same for all functions"""

    def define_pipelines(self) -> list[Any]:
        if not self._managers:
            self._managers.extend(super().define_pipelines())
            for manager in self._managers:
                manager.passes = [(one, name) for one, name in manager.passes if one not in self._LEFT_OUT]
                typed = [one for one, _ in manager.passes].index(typed_passes.NopythonTypeInference)
                manager.passes.insert(typed + 1, (_Tell, "tell of a typed function"))
                manager.finalize()
        return self._managers


def _refresh_if_changed(refresh: Callable[[Any], None]) -> Callable[[Any], None]:
    """Numba looks for new declarations at each call it types, in forty registries: only in what has grown, nearly always one."""
    seen: dict[Any, tuple[list[Any], int, int]] = {}

    def refreshed(context: Any) -> None:
        others, size, lowered = seen.get(context, ([], -1, 0))
        if sum(map(len, others)) != size:
            refresh(context)
            others = [getattr(registry, kind) for one in (context, context.typing_context)
                      for registry, loader in one._registries.items() for kind in loader.registry_items
                      if (registry, kind) != (lowering_registry, "functions")]
        elif len(lowering_registry.functions) != lowered:  # by an operation that was typed for the first time
            context.install_registry(lowering_registry)
        seen[context] = others, sum(map(len, others)), len(lowering_registry.functions)

    return refreshed


_lock = threading.RLock()
_APART = {types.int32, types.float32}
"""types of which no variable can have both: Numba would make it a float64"""


@contextlib.contextmanager
def compiling_for_hopper() -> Iterator[None]:
    """Inside, Numba compiles for sm_90a with or without a GPU, and NVVM's log is part of its errors."""
    if config.FORCE_CUDA_CC:
        raise RuntimeError("NUMBA_FORCE_CUDA_CC drops the 'a' of sm_90a, which wgmma and TMA need: unset it")
    with _lock:
        asked = dispatcher.get_current_device, compiler.get_current_device, codegen.CUDACodeLibrary._ensure_cc
        dispatcher.get_current_device = compiler.get_current_device = lambda: _Hopper
        codegen.CUDACodeLibrary._ensure_cc = lambda self, cc: SM_90A if cc is None else cc
        whole = codegen.CUDACodeLibrary.get_asm_str  # Numba reads the PTX only to look for runtime calls we never make
        codegen.CUDACodeLibrary.get_asm_str = lambda self, cc=None: ""
        unify = types.Number.unify
        types.Number.unify = lambda self, context, other: None if {self, other} == _APART else unify(self, context, other)
        pipeline, compiler.CUDACompiler = compiler.CUDACompiler, _Compiler
        refresh, CUDATargetContext.refresh = CUDATargetContext.refresh, _refresh_if_changed(CUDATargetContext.refresh)
        try:
            yield
        finally:
            CUDATargetContext.refresh, compiler.CUDACompiler = refresh, pipeline
            types.Number.unify = unify
            (dispatcher.get_current_device, compiler.get_current_device, codegen.CUDACodeLibrary._ensure_cc) = asked
            codegen.CUDACodeLibrary.get_asm_str = whole


def _with_log(method: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any) -> Any:
        try:
            return method(self)
        except Exception as error:
            raise RuntimeError(f"NVVM: {self.get_log()}") from error

    return wrapped


nvvm.CompilationUnit.verify = _with_log(nvvm.CompilationUnit.verify)
nvvm.CompilationUnit.compile = _with_log(nvvm.CompilationUnit.compile)


class _Printed:
    """The text of a module that is complete, in place of llvmlite's objects.

    Numba remembers what it compiled for as long as the process lives, although what was compiled for one kernel serves no
    other: three quarters of the memory of a compile were these objects. All functions have got their linkage, which is all
    that Numba would still do to them.
    """

    functions = ()

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def compile_kernel(entry: Callable[..., Any], argtypes: Sequence[Any], *, threads: int, typed: Typed | None = None) -> Any:
    """A `@cuda.jit` kernel of this signature, compiled for sm_90a down to LLVM IR; Numba's own kernel object.

    launch_bounds are always set: without them ptxas ignores setmaxnreg (C7508). `typed` is told of each function on the way.
    """
    with compiling_for_hopper():
        dispatcher_ = cuda.jit(entry, launch_bounds=(threads, 1), lto=True)
        _told[:] = [] if typed is None else [typed]
        try:
            kernel = dispatcher._Kernel(entry, tuple(argtypes), **dispatcher_.targetoptions)
        finally:
            _told.clear()
        dispatcher_.overloads[tuple(argtypes)] = kernel
        kernel.dispatcher = dispatcher_
        library = kernel._codelibrary
        for part in (library, *library.linking_libraries):
            part._module = _Printed(str(part._module))
    return kernel


def front_end(entry: Callable[..., Any], argtypes: Sequence[Any], *, threads: int) -> Any:
    """The code library of `compile_kernel`."""
    return compile_kernel(entry, argtypes, threads=threads)._codelibrary


def rewrite_ir(library: Any, change: Callable[[str], str]) -> None:
    """Replace the text of each LLVM module of a kernel, before anything is made of it."""
    library._llvm_strs = [change(text) for text in library.llvm_strs]


def to_ltoir(library: Any) -> bytes:
    """NVVM: LLVM IR -> LTO-IR for sm_90a (what users get; PTX is never linked)."""
    return bytes(library.get_ltoir(cc=SM_90A))


def to_ptx(library: Any) -> str:
    """PTX after link-time optimisation: what becomes SASS."""
    return str(library.get_lto_ptx(cc=SM_90A)).rstrip("\0")


def link(ltoir: bytes, name: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """nvJitLink, whole program -> (cubin, log with registers, spills and C75xx notes)."""
    from cuda.bindings import nvjitlink

    # what is found in a cache is not logged: a kernel would have 0 registers, and no spills
    flags = ["-lto", "-arch=sm_90a", "-O3", "-verbose", "-no-cache", *options]
    handle = nvjitlink.create(len(flags), flags)
    try:
        def log(kind: str) -> str:
            size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
            text = bytearray(size)
            getattr(nvjitlink, f"get_{kind}_log")(handle, text)
            return text.decode(errors="replace").strip("\x00")

        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), name)
            nvjitlink.complete(handle)
        except Exception as error:
            raise RuntimeError(f"nvJitLink: {log('error')}{log('info')}") from error
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), log("info") + log("error")
    finally:
        nvjitlink.destroy(handle)


def disassemble(cubin: bytes) -> str:
    """SASS by nvdisasm (the nvidia-cuda-nvdisasm wheel or a CUDA toolkit).

    Its data flow analysis, a third of the time, has something to add to spills and to branches by register only.
    """
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin)
    text = str(codegen.run_nvdisasm(code, ["-ndf"]))
    return str(codegen.run_nvdisasm(code, [])) if re.search(r"\b(STL|LDL|BRX|BRXU|JMX|JMXU)\b", text) else text


def calls(library: Any, *functions: str) -> bool:
    """Whether a kernel calls one of these functions."""
    return any(re.search(rf'call [^\n]*@"?({"|".join(functions)})"?\(', text) for text in library.llvm_strs)


def undefined_symbols(library: Any, prefix: str) -> list[str]:
    """Symbols of this prefix that are called and that nothing defines."""
    text = "\n".join(library.llvm_strs)
    called = set(re.findall(rf'declare [^@\n]*@"?({re.escape(prefix)}\w+)"?\(', text))
    defined = set(re.findall(rf'define [^@\n]*@"?({re.escape(prefix)}\w+)"?\(', text))
    return sorted(called - defined)


# ---- errors ---------------------------------------------------------------------------------------------------
def explain(error: BaseException, first: int) -> tuple[str, list[int]]:
    """(reason, lines) of an error raised while compiling: the innermost reason, the lines on the way to it, outermost first.

    Of lines only those from `first` on count. Numba wraps an error once for every function it is typing, keeps the causes of
    failed calls on the side, and says where it was only in its frames' locals: all three are followed.
    """
    return _deepest(error, first, set())[1:]


def _deepest(error: BaseException, first: int, seen: set[int]) -> tuple[int, str, list[int]]:
    """(depth, reason, lines) of the innermost error among an error and its causes."""
    seen.add(id(error))
    reason = str(getattr(error, "msg", None) or error)
    if not isinstance(error, (NumbaError, NumpipeError)):
        reason = f"{type(error).__name__}: {reason}"
    causes = [error.__cause__] if error.__cause__ is not None else []
    lines: list[int] = []
    traceback = error.__traceback__
    while traceback is not None:
        local = traceback.tb_frame.f_locals
        for name in ("constraint", "inst", "stmt"):  # while typing, lowering, interpreting
            lines += _line(local.get(name), first)
        failures: Any = local.get("self")
        if hasattr(failures, "_failures"):  # no candidate of a call matched
            causes += [f.error for group in failures._failures.values() for f in group if isinstance(f.error, Exception)]
            reason = _no_match(failures)
        traceback = traceback.tb_next
    lines += _line(error, first)
    if not lines:
        said = re.findall(r"(?:at|in) [^\n]*? \((\d+)\)", reason) or re.findall(r'File "[^"]*", line (\d+)', reason)
        lines = [int(line) for line in said[-1:] if int(line) >= first]
    inner = [_deepest(cause, first, seen) for cause in causes if id(cause) not in seen]
    depth, told, deeper = max(inner, key=lambda found: found[0], default=(0, "", []))
    return depth + 1, told or _ANSI.sub("", reason), lines + deeper


_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _line(thing: Any, first: int) -> list[int]:
    line = getattr(getattr(thing, "loc", None), "line", 0)
    return [line] if isinstance(line, int) and line >= first else []


def _no_match(failures: Any) -> str:
    key = failures._function_type.typing_key
    name, args = getattr(key, "__name__", str(key)), [str(a) for a in failures._args]
    symbol = _SYMBOLS.get(name.strip("_") if getattr(key, "__module__", "") == "_operator" else "")
    return f"'{symbol or name}' is not defined for " + (" and ".join(args) if symbol else f"({', '.join(args)})")


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "lshift": "<<",
    "rshift": ">>", "and": "&", "or": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "neg": "-", "pos": "+", "invert": "~", "not": "not", "getitem": "[]", "setitem": "[] =", "contains": "in", "is": "is",
    "iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/=", "ifloordiv": "//=", "imod": "%=", "ipow": "**=",
    "imatmul": "@=", "ilshift": "<<=", "irshift": ">>=", "iand": "&=", "ior": "|=", "ixor": "^=",
}
