"""Read arrays from third-party pickles without running code from the pickle.

A pickle is a program that can call any importable function. The planetoid files are Python-2
pickles of NumPy arrays, SciPy CSR matrices and one dictionary of lists. The reader here accepts
only those names, and does not call NumPy's or SciPy's reconstruction code, which does not validate
its input: each name is mapped to a class of this module that only records its arguments. The arrays
are then built from the records, with every size checked.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError

# Booleans, integers and floats of fixed width: the raw form of an object array holds pointers.
_PLAIN_TYPE = re.compile(r"b1|[iu][1248]|f[248]")

Loaded: TypeAlias = NDArray[Any] | sp.csr_array | dict[int, list[int]]


class _Refused(pickle.UnpicklingError):
    """The pickle asks for something that is not on the list."""


class _Dtype:
    """The record of one ``numpy.dtype``: width and byte order."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not _PLAIN_TYPE.fullmatch(code):
            raise _Refused(f"an array of type {code!r}")
        self.text = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, subarray, names, fields = state[:5]
        if order not in ("<", ">", "=", "|") or (subarray, names, fields) != (None, None, None):
            raise _Refused("a structured array type")
        self.text = order + self.text[-2:]


class _NdarrayName:
    """The value of the name ``numpy.ndarray``, which only `_Reconstruct` accepts.

    Without room for attributes a pickle cannot change it for later files, as it could a function.
    """

    __slots__ = ()

    def __call__(self, *_: object) -> None:
        raise _Refused("a call of numpy.ndarray")


class _Array:
    """The record of one ``numpy.ndarray``: its pickle state."""

    state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def build(self) -> NDArray[Any]:
        if self.state is None or len(self.state) != 5:
            raise _Refused("an array without content")
        _, shape, dtype, fortran, raw = self.state
        if isinstance(raw, str):  # a Python-2 string, decoded as latin1
            raw = raw.encode("latin1")
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise _Refused("an array of objects")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise _Refused("an array of impossible shape")
        flat = np.frombuffer(raw, dtype=np.dtype(dtype.text))
        array = flat.reshape(shape, order="F" if fortran else "C")
        return array.astype(array.dtype.newbyteorder("="))


class _CsrMatrix:
    """The record of one SciPy CSR matrix: the attributes that the pickle sets."""

    parts: dict[str, Any] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Without this method a pickle could set attributes of the class itself, for later files.
        self.parts = state

    def build(self) -> sp.csr_array:
        parts = self.parts if isinstance(self.parts, dict) else {}
        arrays = [parts.get(key) for key in ("data", "indices", "indptr")]
        built = tuple(array.build() for array in arrays if isinstance(array, _Array))
        shape = parts.get("_shape", parts.get("shape"))
        if len(built) != 3 or not isinstance(shape, tuple):
            raise _Refused("an incomplete sparse matrix")
        matrix = sp.csr_array(built, shape=shape)
        # The quick check of the constructor lets column numbers past the end through.
        matrix.check_format(full_check=True)
        return matrix


_NDARRAY = _NdarrayName()


class _Reconstruct:
    """Stand-in for NumPy's reconstruction function of arrays."""

    __slots__ = ()

    def __call__(self, array_type: object, *_: object) -> _Array:
        if array_type is not _NDARRAY:
            raise _Refused("an unknown array type")
        return _Array()


class _DefaultDict:
    """Stand-in for defaultdict, without the default."""

    __slots__ = ()

    def __call__(self, *_: object) -> dict[Any, Any]:
        return {}


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("scipy.sparse.csr", "csr_matrix"): _CsrMatrix,
    ("scipy.sparse._csr", "csr_matrix"): _CsrMatrix,
    ("collections", "defaultdict"): _DefaultDict(),
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def load_arrays(path: str | Path) -> Loaded:
    """Return the array, CSR matrix or dictionary of integer lists that a pickle file holds.

    Nothing but plain numeric NumPy arrays, SciPy CSR matrices and such dictionaries is admitted;
    any other name in the file is refused before it is imported.

    >>> import os, pickle, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     good, bad = os.path.join(folder, "good"), os.path.join(folder, "bad")
    ...     for path, content in ((good, np.arange(3)), (bad, os.getcwd)):
    ...         with open(path, "wb") as file:
    ...             pickle.dump(content, file, protocol=3)
    ...     print(load_arrays(good))
    ...     try:
    ...         load_arrays(bad)
    ...     except DataError as error:
    ...         print(str(error).replace(folder, ""))
    [0 1 2]
    `/bad` must hold arrays only. Got posix.getcwd; nothing of it was run.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="latin1").load()
        return _build(content)
    except _Refused as refusal:
        raise DataError(
            f"`{path}` must hold arrays only. Got {refusal}; nothing of it was run."
        ) from None
    except OSError:
        raise
    except Exception as error:  # a broken pickle fails in any way its bytes can provoke
        raise DataError(
            f"`{path}` must be a pickle of arrays. Got a damaged file ({type(error).__name__})."
        ) from None


def _build(content: object) -> Loaded:
    if isinstance(content, _Array | _CsrMatrix):
        return content.build()
    if isinstance(content, dict):
        for key, values in content.items():
            if type(key) is not int or type(values) is not list:
                raise _Refused("a dictionary of something other than integer lists")
            if not all(type(value) is int for value in values):
                raise _Refused("a list of something other than integers")
        return content
    raise _Refused(f"{type(content).__name__.strip('_')}")
