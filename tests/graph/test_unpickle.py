"""Pickles of arrays are read; whatever else a pickle asks for is refused before it happens."""

import collections
import copyreg
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gapgnn.errors import DataError
from gapgnn.graph.datasets import unpickle
from gapgnn.graph.datasets.unpickle import load_arrays


class Call:
    """Pickles as the call of a function: what an attacker writes."""

    def __init__(self, function, *args):
        self.parts = function, args

    def __reduce__(self):
        return self.parts


@pytest.fixture
def written(tmp_path):
    def write(content, protocol=3):
        path = tmp_path / "file"
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
        path.write_bytes(raw)
        return path

    return write


def python2(*parts):
    """Join protocol-2 opcodes as Python 2 wrote them."""
    return b"\x80\x02" + b"".join(parts) + b"."


def text(value):
    return b"U" + bytes([len(value)]) + value


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def array2(values, code=b"i4", raw=None, shape=None, order=b"<", extra=b"NNN"):
    """The opcodes of one array in a Python-2 pickle."""
    raw = values.tobytes() if raw is None else raw
    shape = struct.pack("<i", len(values) if shape is None else shape)
    dtype = name("numpy", "dtype") + text(code) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(order) + extra + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray")
    start += b"K\x00\x85" + text(b"b") + b"\x87R"
    return start + b"(K\x01" + b"J" + shape + b"\x85" + dtype + b"\x89" + text(raw) + b"tb"


def csr2(data, indices, indptr, shape=(2, 3)):
    """The opcodes of one CSR matrix in a Python-2 pickle."""
    parts = {b"data": data, b"indices": indices, b"indptr": indptr}
    fields = b"".join(text(key) + array2(np.array(part, "i4")) for key, part in parts.items())
    size = text(b"_shape") + bytes([0x4B, shape[0], 0x4B, shape[1]]) + b"\x86"
    return name("scipy.sparse.csr", "csr_matrix") + b")\x81}(" + fields + size + b"ub"


@given(
    array=hnp.arrays(
        dtype=st.sampled_from(["?", "i1", "<i4", ">i8", "u2", "<f4", ">f8"]),
        shape=hnp.array_shapes(max_dims=3, min_side=0),
        elements={"allow_nan": False},
    ),
    fortran=st.booleans(),
)
def test_an_array_comes_back_as_it_was(tmp_path_factory, array, fortran):
    path = tmp_path_factory.mktemp("pickles") / "file"
    path.write_bytes(pickle.dumps(np.asfortranarray(array) if fortran else array, 3))
    loaded = load_arrays(path)
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("protocol", [3, 4])
def test_a_csr_matrix_comes_back_as_it_was(written, protocol):
    matrix = sp.random(20, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)
    loaded = load_arrays(written(sp.csr_matrix(matrix), protocol))
    assert (loaded != sp.csr_array(matrix)).nnz == 0


def test_a_dictionary_of_lists_comes_back_as_a_plain_one(written):
    graph = collections.defaultdict(list, {0: [1, 2], 1: [0], 2: []})
    loaded = load_arrays(written(graph))
    assert type(loaded) is dict
    assert loaded == graph


def test_pickles_of_python_2_and_old_module_names_are_read(written):
    assert load_arrays(written(python2(array2(np.array([7, -1], "i4"))))).tolist() == [7, -1]
    matrix = load_arrays(written(python2(csr2([5, 6], [0, 2], [0, 1, 2]))))
    assert matrix.toarray().tolist() == [[5, 0, 0], [0, 0, 6]]


def unwanted_contents():
    matrix = sp.csr_matrix(np.eye(2))
    matrix.note = Call(os.system, "touch PWNED")
    return {
        "os.system": Call(os.system, "touch PWNED"),
        "eval": Call(eval, "__import__('os').system('touch PWNED')"),
        "exec": Call(exec, "open('PWNED', 'w')"),
        "open": Call(open, "PWNED", "w"),
        "getattr": Call(getattr, "text", "format"),
        "import": Call(__import__, "os"),
        "numpy.load": Call(np.load, "PWNED"),
        "numpy.fromfile": Call(np.fromfile, "/etc/hostname"),
        "numpy.memmap": Call(np.memmap, "PWNED", "u1", "w+"),
        "numpy.ndarray": Call(np.ndarray, (2,), np.dtype("i4"), b"12345678"),
        "object array": np.array([Call(os.system, "touch PWNED")], dtype=object),
        "plain object array": np.array([{}, "x"], dtype=object),
        "structured array": np.zeros(2, dtype=[("a", "O"), ("b", "i4")]),
        "string array": np.array(["a"]),
        "defaultdict with a call": collections.defaultdict(os.getcwd, {0: [1]}),
        "call inside a dictionary": {0: [Call(os.system, "touch PWNED")]},
        "call as a key": {Call(os.getcwd): [1]},
        "matrix with a call": matrix,
        "reconstructor": Call(copyreg._reconstructor, dict, object, None),
        "file object": Call(io.BytesIO, b""),
        "lists of text": {0: ["text"]},
        "text for keys": {"0": [1]},
        "tuples for lists": {0: (1,)},
        "text": "text",
    }


@pytest.mark.parametrize("attack", unwanted_contents())
@pytest.mark.parametrize("protocol", [2, 3, 5])
def test_anything_but_arrays_is_refused_and_nothing_runs(
    written, tmp_path, monkeypatch, attack, protocol
):
    monkeypatch.chdir(tmp_path)
    path = written(unwanted_contents()[attack], protocol)
    with pytest.raises(DataError, match=r"must hold arrays only.*nothing of it was run") as error:
        load_arrays(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir()) == ["file"]


def test_the_attacks_of_these_tests_are_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(unwanted_contents()["os.system"]))
    assert os.listdir() == ["PWNED"]


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromstring"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy", "load"),
        ("scipy.sparse.csr", "os"),
        ("scipy.sparse._csr", "csr_matrix.__init__"),
        ("collections", "namedtuple"),
        ("collections", "defaultdict.__init__"),
        ("__builtin__", "eval"),
        ("builtins", "list.append"),
        ("posix", "system"),
        ("gapgnn.graph.datasets.unpickle", "load_arrays"),
    ],
)
def test_names_near_the_admitted_ones_are_refused(written, module, attribute):
    with pytest.raises(DataError, match=f"Got {module}.{attribute};"):
        load_arrays(written(python2(name(module, attribute))))


def test_an_array_whose_flags_are_forged_never_reaches_numpy(written):
    # NumPy does not check the fields and flags in a pickled type: with them, bytes become pointers.
    fields = name("numpy", "dtype") + text(b"O8") + b"K\x00K\x01\x87R"
    with pytest.raises(DataError, match="an array of type 'O8'"):
        load_arrays(written(python2(fields)))
    forged = array2(np.zeros(2, "i4"), extra=b"N(U\x01atN")
    with pytest.raises(DataError, match="a structured array type"):
        load_arrays(written(python2(forged)))


def test_the_size_of_an_array_must_fit_its_bytes(written):
    for shape in (3, 1, -1, -2):
        with pytest.raises(DataError, match=r"damaged|impossible shape"):
            load_arrays(written(python2(array2(np.zeros(2, "i4"), shape=shape))))


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [([0, 3], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [0, 2, 1]), ([0, 1], [0, 1, 9])],
)
def test_a_matrix_that_points_outside_itself_is_refused(written, indices, indptr):
    with pytest.raises(DataError, match="damaged"):
        load_arrays(written(python2(csr2([5, 6], indices, indptr))))


def test_a_pickle_cannot_change_the_reader_for_the_next_one(written):
    before = _attributes()
    for module, attribute in unpickle._STAND_INS:
        # BUILD with a pair sets attributes of the object itself, here of the stand-in.
        for changed in (b"build", b"__defaults__", b"__class__"):
            attack = name(module, attribute) + b"N}" + text(changed) + name("builtins", "list")
            with pytest.raises(DataError):
                load_arrays(written(python2(attack + b"s\x86b")))
        # And with a dictionary those that it keeps by name.
        attack = name(module, attribute) + b"}" + text(b"build") + b"K\x01sb"
        with pytest.raises(DataError):
            load_arrays(written(python2(attack)))
    assert _attributes() == before
    assert load_arrays(written(python2(csr2([5, 6], [0, 2], [0, 1, 2])))).nnz == 2


def _attributes():
    """Return all that can be set of what names stand for."""
    return {
        key: {part: getattr(stand_in, part, None) for part in dir(stand_in)}
        for key, stand_in in unpickle._STAND_INS.items()
        if stand_in is not list
    }


@given(raw=st.binary(max_size=200))
def test_garbage_is_one_clear_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("garbage") / "file"
    path.write_bytes(raw)
    with pytest.raises(DataError) as error:
        load_arrays(path)
    assert str(path) in str(error.value)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_truncated_pickle_is_one_clear_error(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("truncated") / "file"
    raw = pickle.dumps(sp.csr_matrix(np.eye(4)), 3)
    path.write_bytes(raw[: int(cut * len(raw))])
    with pytest.raises(DataError, match="damaged"):
        load_arrays(path)


@pytest.mark.dataset
def test_the_published_files_pass():
    folder = Path(os.environ.get("GAPGNN_DATA") or "/nonexistent") / "planetoid"
    if not folder.is_dir():
        pytest.skip("needs planetoid files under GAPGNN_DATA")
    shapes = {}
    for path in folder.glob("ind.pubmed.*"):
        if path.suffix != ".index":
            loaded = load_arrays(path)
            shapes[path.suffix] = len(loaded) if isinstance(loaded, dict) else loaded.shape
    expected = {
        ".x": (60, 500),
        ".y": (60, 3),
        ".tx": (1000, 500),
        ".ty": (1000, 3),
        ".allx": (18717, 500),
        ".ally": (18717, 3),
        ".graph": 19717,
    }
    assert expected.items() >= shapes.items()
    assert {".allx", ".ally", ".tx", ".ty", ".graph"} <= shapes.keys()
