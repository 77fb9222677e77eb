from __future__ import annotations

import numpy as np
import pytest

from ckptstore.format.codecs import BYTES, Form
from ckptstore.format.forms import named_form
from ckptstore.state.dtypes import dtype_name
from ckptstore.testing.states import NUMPY_DTYPES, TORCH_DTYPES


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_names_of_torch_say_what_its_numbers_are(dtype):
    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    expected = Form(width, floating=dtype.is_floating_point or dtype.is_complex)
    assert named_form("torch", dtype_name(dtype), dtype.itemsize) == expected


@pytest.mark.parametrize("name", [*NUMPY_DTYPES, "<f8", "<c8", "|i1", "|u1", ">f2", "<u8", "i4,f8", "(2,)f4"])
def test_names_of_numpy_say_what_its_numbers_are(name):
    dtype = np.dtype(name)
    width = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    numeric = dtype.kind in "biufcmM" and dtype.isnative and width <= 8
    expected = Form(width, floating=dtype.kind in "fc") if numeric else BYTES
    assert named_form("numpy", dtype_name(dtype), dtype.itemsize) == expected
