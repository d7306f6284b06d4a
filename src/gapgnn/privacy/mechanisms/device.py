"""One noisy hop on an accelerator in one pass: add up, perturb, normalise, write.

Two ways to the same result. Where Triton is present, a kernel reads every neighbour's row once and
adds noise and normalises before it writes. Elsewhere torch multiplies by a CSR matrix and the rest
follows. Safe sums are sums of whole numbers and agree bit by bit; single-precision ones agree to
rounding.

Safe noise is drawn by the kernel that adds it, from the stream and by the arithmetic of the CPU, so
that the bits are the same (:mod:`gapgnn.privacy.mechanisms.noise`). Its key is on the device while
the kernel runs and is overwritten right behind it, in the order of the device's own queue.

Fast noise on an accelerator is a function of a secret and of the cell's row and column, not of the
order or shape of a launch: Philox4x32-10 (Salmon et al. 2011) with 128 secret bits, 64 as its key
and 64 in the counter beside row and column, then Box-Muller in single precision. Philox is not a
cryptographic generator, and single-precision noise has gaps: this is ``fast`` noise, for
experiments (privacy page, section 4). What it is added to, its scale and its price are the callers'
business.

Long lists are split. A list of more than :data:`SEGMENT` entries is added up segment by segment and
then the segments are, so that one hub does not keep the device waiting; lists are taken by falling
length, so that neighbours in a launch have about the same amount of work. The order of a sum
depends on the in-degree alone.

The lists are copied, cut and turned round on the device too. Cutting follows
:func:`gapgnn.graph.degree.bound_out_degrees` to the bit: the same keyed hash, the same D entries of
every list (privacy page, section 1). What cannot be decided here, which is dangling entries and
hashes that tie at a list's threshold, is left to the host.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import (
    Graph,
    WordOps,
    bound_out_degrees,
    encode_ids,
    pair_hashes,
    row_words,
    secret_words,
    split_key,
)
from gapgnn.privacy.mechanisms.draws import BLOCK_WORDS
from gapgnn.rng import NoiseKey

SEGMENT = 1024
# Blocks of the cipher in one program where noise is drawn alone.
CIPHER_BLOCKS = 128
# By measurement: lists side by side in one program, and numbers it reads at a time.
GROUP, TILE, WARPS = 8, 1024, 1
MOST_COLUMNS = 64
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF
Lists = tuple[Tensor, Tensor]
# Entries that are hashed at a time: about 4 GiB of temporaries.
CHUNK_ENTRIES = 1 << 26
_COPIES: WeakKeyDictionary[Graph, dict[tuple[str, torch.device], Tensor]] = WeakKeyDictionary()
_SHARED: WeakKeyDictionary[Graph, dict[torch.device, InLists]] = WeakKeyDictionary()


@dataclass(frozen=True)
class PhiloxNoise:
    """Gaussian noise that a kernel draws by itself.

    Attributes:
        secret: 16 bytes that nobody else knows, derived from a noise key for one release.
        std: standard deviation.
    """

    secret: bytes
    std: float

    def words(self, device: torch.device) -> Tensor:
        """Return the key and the secret half of the counter, as the kernels read them."""
        key = int.from_bytes(self.secret[:8], "little", signed=True)
        counter = (int.from_bytes(self.secret[at : at + 4], "little") for at in (8, 12))
        return torch.tensor([key, *counter], dtype=torch.int64, device=device)

    def rows(self, first_row: int, num_rows: int, num_columns: int, device: Any) -> Tensor:
        """Return the noise of some rows, ``(num_rows, num_columns)`` float32.

        >>> noise = PhiloxNoise(bytes(range(16)), 2.0)
        >>> whole = noise.rows(0, 6, 3, "cpu")
        >>> bool((whole[4:] == noise.rows(4, 2, 3, "cpu")).all())
        True
        """
        device = torch.device(device)
        words, cells = self.words(device), num_rows * num_columns
        if cells and can_use_triton(device):
            from gapgnn.privacy.mechanisms.triton_hop import noise_kernel

            out = torch.empty(num_rows, num_columns, device=device)
            with running_on(device):
                noise_kernel[(-(-cells // 1024),)](
                    out, words, self.std, first_row, cells, WIDTH=num_columns, BLOCK=1024
                )
            return out
        rows = torch.arange(first_row, first_row + num_rows, device=device).unsqueeze(1)
        pairs = torch.arange((num_columns + 1) // 2, device=device)
        left, right, _, _ = philox((rows, pairs, words[1], words[2]), words[0])
        uniform = (left.float() + 0.5) * 2.0**-32
        angle = right.float() * (2 * math.pi * 2.0**-32)
        size = (-2 * uniform.log()).sqrt()
        both = torch.stack([size * angle.cos(), size * angle.sin()], dim=-1)
        return both.flatten(1)[:, :num_columns].mul(self.std)


@contextmanager
def key_on(device: torch.device, secret: bytes, *more: int) -> Iterator[Tensor]:
    """Yield the cipher's key and what else a kernel reads beside it, and overwrite it behind it."""
    words = torch.tensor(
        [*np.frombuffer(secret, dtype="<i8").tolist(), *more], dtype=torch.int64, device=device
    )
    try:
        yield words
    finally:
        words.zero_()


def cipher_halves(secret: bytes, count: int, device: torch.device) -> Tensor:
    """Return uniforms in (0, 1/2], negative where the top bit of their word is set; needs Triton.

    Those of :meth:`gapgnn.privacy.mechanisms.draws.Draws.halves` for the same key, to the bit.
    """
    from gapgnn.privacy.mechanisms.triton_noise import halves_kernel

    out = torch.empty(count, dtype=torch.float64, device=device)
    programs = -(-count // (BLOCK_WORDS * CIPHER_BLOCKS))
    with running_on(device), key_on(device, secret) as words:
        halves_kernel[(programs,)](out, words, count, BLOCKS=CIPHER_BLOCKS, enable_fp_fusion=False)
    return out


@dataclass(frozen=True)
class CipherNoise:
    """Safe Gaussian noise that a kernel draws by itself: ChaCha20, as the CPU draws it.

    Attributes:
        secret: the cipher's key of 32 bytes, derived from a noise key for one release.
        std: standard deviation in steps of the grid.
        unit: what a step is worth.
    """

    secret: bytes = field(repr=False)
    std: float
    unit: float

    @contextmanager
    def words(self, device: torch.device) -> Iterator[Tensor]:
        """Yield what the kernels read, on the device, and overwrite it behind them."""
        with key_on(device, self.secret, int(np.float64(self.std).view(np.int64))) as words:
            yield words

    def rows(self, first_row: int, num_rows: int, num_columns: int, device: Any) -> Tensor:
        """Return the noise of some rows, ``(num_rows, num_columns)`` float64; needs Triton."""
        from gapgnn.privacy.mechanisms.triton_noise import safe_noise_kernel

        device = torch.device(device)
        out = torch.empty(num_rows, num_columns, dtype=torch.float64, device=device)
        row_blocks = -(-num_columns // BLOCK_WORDS)
        count = num_rows * row_blocks
        if not count:
            return out
        with running_on(device), self.words(device) as words:
            safe_noise_kernel[(-(-count // CIPHER_BLOCKS),)](
                out,
                words,
                first_row * row_blocks,
                count,
                UNIT=self.unit,
                WIDTH=num_columns,
                ROW_BLOCKS=row_blocks,
                BLOCKS=CIPHER_BLOCKS,
                enable_fp_fusion=False,
            )
        return out


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four pseudorandom 32-bit words per counter of four, in int64: Philox4x32-10.

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in philox((zero, zero, zero, zero), zero)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    first, second, third, fourth = counter
    low, high = key & LOW, (key >> 32) & LOW
    for _ in range(ROUNDS):
        # A product wraps at 64 bits; its bits are those of the unsigned one.
        one, two = first * MULTIPLIERS[0], third * MULTIPLIERS[1]
        first, second = ((two >> 32) & LOW) ^ second ^ low, two & LOW
        third, fourth = ((one >> 32) & LOW) ^ fourth ^ high, one & LOW
        low, high = (low + WEYL[0]) & LOW, (high + WEYL[1]) & LOW
    return first, second, third, fourth


def longest_row(rows: Tensor) -> float:
    """Return the largest L2 norm of the last dimension, added up in float64.

    Infinity or NaN if some number is not finite.

    >>> longest_row(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    5.0
    """
    width = rows.shape[-1]
    if rows.dtype != torch.float32 or width > MOST_COLUMNS or not can_use_triton(rows.device):
        return float(torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).max())
    from gapgnn.privacy.mechanisms.triton_hop import longest_kernel

    columns = max(4, 1 << (width - 1).bit_length())
    size, count = 4096 // columns, rows.numel() // width
    squares = torch.empty(-(-count // size), dtype=torch.float64, device=rows.device)
    with running_on(rows.device):
        longest_kernel[(len(squares),)](
            rows.contiguous(), squares, count, WIDTH=width, COLUMNS=columns, ROWS=size
        )
    return math.sqrt(float(squares.max()))


def quantised_steps(rows: Tensor) -> tuple[Tensor, float]:
    """Return rows cut to a grid, in steps of 2**-20, int32, and the largest squared norm in steps.

    What :func:`gapgnn.privacy.mechanisms.sums.quantise_rows` does, in one pass; needs Triton.
    """
    from gapgnn.privacy.mechanisms.triton_hop import quantise_kernel

    count, width = rows.shape
    columns = max(4, 1 << (width - 1).bit_length())
    size = 2048 // columns
    out = torch.empty(rows.shape, dtype=torch.int32, device=rows.device)
    squares = torch.empty(-(-count // size), dtype=torch.float64, device=rows.device)
    with running_on(rows.device):
        quantise_kernel[(len(squares),)](
            rows.contiguous(),
            out,
            squares,
            count,
            WIDTH=width,
            COLUMNS=columns,
            ROWS=size,
            enable_fp_fusion=False,
        )
    return out, float(squares.max())


def can_use_triton(device: torch.device) -> bool:
    """Return whether the kernels can run on this device."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    from gapgnn.privacy.mechanisms.triton_jit import IS_INTERPRETED, IS_PRESENT

    return bool(IS_PRESENT if device.type == "cuda" else IS_INTERPRETED)


def running_on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which kernels are launched on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def csr_tensor(pointers: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a sparse matrix of torch over these very tensors, unchecked: a Graph is checked."""
    with warnings.catch_warnings():
        # torch announces that CSR is in beta and unchecked.
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant checks)")
        return torch.sparse_csr_tensor(pointers, columns, values, size=size, check_invariants=False)


@dataclass(frozen=True)
class Items:
    """Pieces of work: add up ``counts[i]`` entries from ``starts[i]`` on, for row ``rows[i]``."""

    rows: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def by_length(cls, rows: Tensor, starts: Tensor, counts: Tensor) -> Items:
        """Put the longest first."""
        order = torch.argsort(counts, descending=True, stable=True)
        return cls(rows[order].int(), starts[order].long(), counts[order].int())


class _Finish(NamedTuple):
    """What happens to a sum before it is written.

    Attributes:
        given: what to add.
        words: what the kernel draws noise from.
        is_safe: whether that is safe noise.
        std: of the fast noise it draws.
        normalise: scale rows to norm 1.
        unit: what the whole number one is worth.
    """

    given: Tensor | None
    words: Tensor | None
    is_safe: bool
    std: float
    normalise: bool
    unit: float


class InLists:
    """Who writes to each row, on one device: lists in CSR form, and how they are added up.

    Args:
        indptr: ``(N + 1,)`` int64.
        indices: who is on the lists, int32 where they fit.
        weights: how much each entry weighs, None for 1.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, weights: Tensor | None = None) -> None:
        self.indptr = indptr
        self.indices = indices
        self.weights = weights
        self._matrices: dict[torch.dtype, Tensor] = {}

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the lists as a CSR matrix of weights or ones, for a product in torch.

        >>> lists = InLists(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32))
        >>> (lists.matrix(torch.float32) @ torch.eye(2)).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        if dtype not in self._matrices:
            index_dtype = torch.int32 if len(self.indices) < 2**31 else torch.int64
            lists = self.indptr.to(index_dtype), self.indices.to(index_dtype)
            if self.weights is None:
                values = torch.ones(len(self.indices), dtype=dtype, device=self.indices.device)
            else:
                values = self.weights.to(dtype)
            self._matrices[dtype] = csr_tensor(*lists, values, (len(self.indptr) - 1,) * 2)
        return self._matrices[dtype]

    def can_release(self, num_columns: int) -> bool:
        """Return whether :meth:`release` can run: Triton, no weights, rows not too wide."""
        if self.weights is not None:
            return False
        return 0 < num_columns <= MOST_COLUMNS and can_use_triton(self.indices.device)

    def release(
        self,
        rows: Tensor,
        *,
        noise: PhiloxNoise | CipherNoise | None,
        normalise: bool,
        out: Tensor,
        unit: float = 1.0,
        given: Tensor | None = None,
    ) -> None:
        """Write the sums of ``rows`` over the lists to ``out``, with noise, normalised.

        Args:
            rows: ``(N, d)`` float32, or int32 whole numbers of at most 2**20 in size.
            noise: drawn in the kernel; safe noise is for whole numbers.
            normalise: scale every row to norm 1; a zero row stays zero.
            out: ``(N, d)`` float32, contiguous.
            unit: what the whole number one is worth.
            given: what else to add, ``(N, d)``, whole numbers of any size where ``rows`` are whole.
        """
        rows = _padded(rows)
        # Words once for all launches: a copy to the device waits for the kernel before it.
        if isinstance(noise, CipherNoise):
            with noise.words(rows.device) as key:
                self._add_up(rows, out, _Finish(given, key, True, 0.0, normalise, unit))
            return
        words = None if noise is None else noise.words(rows.device)
        std = 0.0 if noise is None else noise.std
        self._add_up(rows, out, _Finish(given, words, False, std, normalise, unit))

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums of ``rows`` over the lists, NOT private: int64 of whole numbers."""
        dtype = rows.dtype if rows.is_floating_point() else torch.int64
        out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
        self._add_up(_padded(rows), out, None)
        return out

    def _add_up(self, rows: Tensor, out: Tensor, finish: _Finish | None) -> None:
        short, segments, long = self._work
        self._launch(short, rows, out, finish)
        if len(long.rows):
            dtype = rows.dtype if rows.is_floating_point() else torch.int64
            parts = torch.empty(len(segments.rows), rows.shape[1], dtype=dtype, device=rows.device)
            self._launch(segments, rows, parts, None)
            self._launch(long, parts, out, finish, gather=False)

    @cached_property
    def _work(self) -> tuple[Items, Items, Items]:
        """Return short lists, the segments of long ones, and long ones as lists of segments."""
        starts, counts = self.indptr[:-1], self.indptr.diff()
        is_long = counts > SEGMENT
        short = Items.by_length(*(part[~is_long] for part in (_places(counts), starts, counts)))
        where = is_long.nonzero().squeeze(1)
        pieces = (counts[where] + SEGMENT - 1) // SEGMENT
        ends = pieces.cumsum(0)
        owner = torch.repeat_interleave(where, pieces)
        offsets = (_places(owner) - torch.repeat_interleave(ends - pieces, pieces)) * SEGMENT
        lengths = (counts[owner] - offsets).clamp(max=SEGMENT)
        segments = Items.by_length(_places(owner), starts[owner] + offsets, lengths)
        return short, segments, Items.by_length(where, ends - pieces, pieces)

    def _launch(
        self, items: Items, rows: Tensor, out: Tensor, finish: _Finish | None, gather: bool = True
    ) -> None:
        """Run the kernel on some items; without ``finish`` it writes the bare sums."""
        from gapgnn.privacy.mechanisms.triton_hop import hop_kernel

        if not len(items.rows):
            return
        given = None if finish is None else finish.given
        words = None if finish is None else finish.words
        is_safe = finish is not None and finish.is_safe
        # A block of the cipher is eight columns.
        columns = max(BLOCK_WORDS if is_safe else 4, 1 << (out.shape[1] - 1).bit_length())
        with running_on(rows.device):
            hop_kernel[(-(-len(items.rows) // GROUP),)](
                rows,
                self.indices,
                items.rows,
                items.starts,
                items.counts,
                out if given is None else given,
                items.starts if words is None else words,
                out,
                0.0 if finish is None else finish.std,
                len(items.rows),
                WIDTH=out.shape[1],
                STRIDE=rows.shape[1],
                COLUMNS=columns,
                GROUP=GROUP,
                STEP=max(1, TILE // (GROUP * columns)),
                GATHER=gather,
                WHOLE=not rows.is_floating_point(),
                FINISH=finish is not None,
                GIVEN=given is not None,
                DRAWN=0 if words is None else 1 + int(is_safe),
                ROW_BLOCKS=-(-out.shape[1] // BLOCK_WORDS),
                NORMALISE=finish is not None and finish.normalise,
                UNIT=1.0 if finish is None else finish.unit,
                num_warps=WARPS,
                # Safe noise is the same to the bit on every device.
                enable_fp_fusion=not is_safe,
            )


def _padded(rows: Tensor) -> Tensor:
    """Return rows that start at multiples of 16 bytes: they are read four numbers at a time."""
    width = rows.shape[1]
    return torch.nn.functional.pad(rows, (0, -width % 4)) if width % 4 else rows


def _places(values: Tensor) -> Tensor:
    return torch.arange(len(values), device=values.device)


def copy_on(graph: Graph, name: str, device: torch.device) -> Tensor:
    """Return an array of a graph on a device, copied once and kept there while the graph lives.

    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2))
    >>> copy_on(graph, "indptr", torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    known = _COPIES.setdefault(graph, {})
    if (name, device) not in known:
        known[name, device] = torch.tensor(getattr(graph, name), device=device)
    return known[name, device]


def in_lists_on(
    graph: Graph,
    device: torch.device,
    *,
    max_degree: int | None = None,
    key: NoiseKey | None = None,
) -> InLists:
    """Return who writes to each row, after adjacency lists were cut to ``max_degree`` entries.

    Relation: without a cut, any at edge level; with one, ``add-remove`` or ``replace`` at node
    level, where a record writes to at most ``max_degree`` rows (privacy page, section 1).

    Args:
        graph: the private graph.
        device: where the lists are needed.
        max_degree: D, None for whole lists, which are kept for the next caller.
        key: the secret of the cut.

    >>> graph = Graph.from_arcs([0, 0], [1, 2], num_nodes=3, features=np.eye(3), directed=True)
    >>> lists = in_lists_on(graph, torch.device("cpu"))
    >>> lists.indptr.tolist(), lists.indices.tolist()
    ([0, 0, 1, 2], [0, 0])
    """
    if max_degree is not None and key is not None:
        cut = _cut(graph, device, max_degree, key)
        if cut is None:
            indptr, indices = bound_out_degrees(graph, max_degree, key)[:2]
            cut = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)
        return InLists(*_turned(*cut))
    known = _SHARED.setdefault(graph, {})
    if device not in known:
        lists = copy_on(graph, "indptr", device), copy_on(graph, "indices", device)
        known[device] = InLists(*(_turned(*lists) if graph.is_directed else lists))
    return known[device]


def _turned(indptr: Tensor, indices: Tensor) -> Lists:
    """Return the transpose: the in-neighbours of each node, in increasing order."""
    places = torch.arange(len(indptr) - 1, dtype=indices.dtype, device=indices.device)
    sources = torch.repeat_interleave(places, indptr.diff(), output_size=len(indices))
    order = torch.sort(indices, stable=True).indices
    counts = torch.bincount(indices, minlength=len(indptr) - 1)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), sources[order]


def _cut(graph: Graph, device: torch.device, limit: int, key: NoiseKey) -> Lists | None:
    """Cut every adjacency list to ``limit`` entries; None if that cannot be decided here."""
    if graph.dangling_targets is not None:
        return None
    indptr, indices = copy_on(graph, "indptr", device), copy_on(graph, "indices", device)
    counts = indptr.diff()
    long_rows = (counts > limit).nonzero().squeeze(1)
    if not len(long_rows):
        return indptr, indices
    siphash_key, name_key = split_key(key)
    codes: NDArray[Any] = encode_ids(graph.ids, name_key).view(np.int64)
    owners, entrants = secret_words(torch.tensor(codes, device=device), siphash_key, DEVICE_OPS)
    keep = torch.ones(len(indices), dtype=torch.bool, device=device)
    chunk = counts[long_rows].cumsum(0) // CHUNK_ENTRIES
    for rows in torch.split(long_rows, torch.bincount(chunk).tolist()):
        lengths = counts[rows]
        starts = lengths.cumsum(0) - lengths
        rank = torch.repeat_interleave(torch.arange(len(rows), device=device), lengths)
        places = torch.arange(len(rank), device=device) + (indptr[rows] - starts)[rank]
        hashes = pair_hashes(owners[rows][rank], entrants[indices[places]], DEVICE_OPS)
        words = row_words(rank, hashes, len(rows), _shifted)
        threshold = torch.sort(words).values[starts + limit - 1]
        kept = words <= threshold[rank]
        if int(kept.sum()) != limit * len(rows):
            return None
        keep[places] = kept
    ends = torch.nn.functional.pad(counts.clamp(max=limit).cumsum(0), (1, 0))
    return ends, indices[keep]


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift 64-bit words right and fill with zeros: torch's own shift keeps the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _rotate(word: Tensor, by: int, spare: Tensor) -> None:
    torch.bitwise_right_shift(word, 64 - by, out=spare)
    spare &= (1 << by) - 1
    word.bitwise_left_shift_(by).bitwise_or_(spare)


DEVICE_OPS = WordOps(_signed, torch.full_like, _rotate, _shifted)
