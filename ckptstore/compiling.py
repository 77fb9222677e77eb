"""What torch must not compile, though it compiles what calls it: where tensors are looked at, it knows no bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """The same as `torch.compiler.disable`, which takes a second to import, so not before torch compiles anything."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        from torch.compiler import is_compiling

        if is_compiling():  # torch looks at this to compile it; at all modules it must not, while others import some
            from torch import _dynamo

            compiler: Any = _dynamo
        else:
            compiler = sys.modules.get("torch._dynamo")
        disable = getattr(compiler, "disable", None)  # missing while another thread imports it
        made: T = (function if disable is None else disable(function))(*args, **kwargs)
        return made

    return call
