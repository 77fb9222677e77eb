"""Machine code: made of what numba says in LLVM's own language, and put where it can be called.

What is made needs neither numba nor Python: nothing that is compiled here raises, or counts references.
"""

from __future__ import annotations

import re
from ctypes import CFUNCTYPE, c_float, c_int64, c_void_p
from functools import cache
from typing import Any

from llvmlite import binding as llvm

from ckptstore.format.codecs.compiled.calls import Call, Loop
from ckptstore.format.codecs.compiled.zstd import symbol

_GIVEN = {"a": c_void_p, "n": c_int64, "f": c_float}
_NAME = "ckptstore_loop"
_NEVER_REACHED = (
    "NRT_Free",
    "NRT_MemInfo_call_dtor",
    "PyBytes_FromStringAndSize",
    "PyErr_Clear",
    "PyErr_SetNone",
    "PyErr_SetString",
    "PyErr_WriteUnraisable",
    "PyUnicode_FromString",
    "Py_DecRef",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)
"""By which errors would be raised, and memory let go."""
_BODIES = dict.fromkeys(_NEVER_REACHED, "  call void @llvm.trap()\n  unreachable") | {
    "sqrtf": "  %root = call float @llvm.sqrt.f32(float %0)\n  ret float %root"
}
_DECLARED = re.compile(r"^declare (.*@(\w+)\(.*)$", re.MULTILINE)
_DATA_ELSEWHERE = re.compile(r"= external global i8$", re.MULTILINE)
_ELSEWHERE = ("llvm.", symbol(""))
_INTRINSICS = ("declare void @llvm.trap()", "declare float @llvm.sqrt.f32(float)")
_ENGINES: list[Any] = []
"""What loops lie in, for as long as the process lives."""


def machine_code(text: str, name: str) -> bytes:
    """For the processor at hand: the function of that name, and what it calls, in LLVM's language.

    Functions of numba's, Python's and the system's are replaced, so that only zstd's are called. Raises ValueError for
    one that is not known: what calls it would end the process.
    """
    text = _DECLARED.sub(_defined, _DATA_ELSEWHERE.sub("= internal global i8 0", text))
    text = text.replace(f"@{name}(", f"@{_NAME}(")
    module = _parsed("\n".join([text, *(line for line in _INTRINSICS if line not in text), ""]))
    names = [*module.functions, *module.global_variables]
    unknown = [each.name for each in names if each.is_declaration and not each.name.startswith(_ELSEWHERE)]
    if unknown or not any(each.name == _NAME and not each.is_declaration for each in names):
        raise ValueError(f"numba calls {unknown}, which are not known here, or makes no function {name}")
    code: bytes = _target_machine().emit_object(module)
    return code


def _defined(declared: re.Match[str]) -> str:
    body = _BODIES.get(declared[2])
    return declared[0] if body is None else f"define internal {declared[1]} {{\n{body}\n}}"


def loaded(code: bytes, call: Call) -> Loop:
    """The loop that some machine code is."""
    _begin()
    engine = llvm.create_mcjit_compiler(_parsed(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return CFUNCTYPE(c_int64, *map(_GIVEN.__getitem__, call.given))(engine.get_function_address(_NAME))


@cache
def processor() -> tuple[str, str, str]:
    """The kind of machine, the processor, and what it can, if that is known, in LLVM's words."""
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        features = ""
    return llvm.get_default_triple(), llvm.get_host_cpu_name(), features


@cache
def _begin() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _parsed(text: str) -> Any:
    return llvm.parse_assembly(text)


def _target_machine() -> Any:
    """One for each use, since an engine takes its own with it."""
    _begin()
    triple, name, features = processor()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=name,
        features=features,
        opt=3,
        reloc="static" if triple.startswith(("x86", "i")) else "default",
        codemodel="jitdefault",
        jit=True,
    )
