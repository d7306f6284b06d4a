"""Clipping of any function of one example: its gradients are taken example by example.

Where nothing is known of a network but that it maps one example to an output, its gradients are
computed by ``torch.func``: the function is called on every example by itself, so the output of one
example cannot depend on another one, whatever the network does. With ``g_i = J_i^T d_i``, where
``d_i`` is the gradient of the loss by the output of example ``i`` and ``J_i`` the derivative of
that output by all parameters::

    norm_i^2    = |g_i|^2                (in float64, over all parameters together)
    clipped sum = sum_i c_i g_i

Norm and sum read the same float32 numbers ``g_i``, so that one example moves the sum by at most the
clip, however ``g_i`` was rounded. It takes memory for the gradients of a chunk of examples, and is
slower than ghost norms (:mod:`gapgnn.privacy.dpsgd.ghost`), which know their layers. Relation
``add-remove`` (one example), sensitivity of the clipped sum: the clip. Privacy page, sections 2
and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

# Numbers of all examples' gradients that are held at once: 64 MiB.
NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class PerExampleRecord:
    """One application of a function to every example of each replica.

    Attributes:
        function: takes the number of a replica, its parameters by name, and one example without
            a batch axis; returns its output.
        values: the parameters by name, ``(R, ...)`` each.
        inputs: a tensor ``(R, B, ...)``, or a list of such tensors.
        outputs: of the function, ``(R, B, ...)``; its gradient is that of the losses.
    """

    function: Callable[[int, Mapping[str, Tensor], Any], Tensor]
    values: Mapping[str, Tensor]
    inputs: Any
    outputs: Tensor

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, each with the replica axis first."""
        return list(self.values.values())

    def squared_norms(self, delta: Tensor) -> Tensor:
        """Return each example's squared gradient norm over all parameters, ``(R, B)``."""
        found = torch.zeros(delta.shape[:2], dtype=torch.float64, device=delta.device)
        for replica, rows, gradients in self._gradients(delta):
            for gradient in gradients.values():
                found[replica, rows] += gradient.double().flatten(1).square().sum(1)
        return found

    def clipped_sums(
        self, delta: Tensor, factors: Tensor, *, masked: bool, exact: bool
    ) -> dict[int, Tensor]:
        """Return, per parameter (by ``id``), the sum over examples of factor times gradient."""
        dtype = torch.float64 if exact else factors.dtype
        sums = {
            name: torch.zeros(value.shape, dtype=dtype, device=delta.device)
            for name, value in self.values.items()
        }
        for replica, rows, gradients in self._gradients(delta):
            by_example = factors[replica, rows].to(dtype)
            for name, gradient in gradients.items():
                flat = gradient.to(dtype).flatten(1)
                if masked:  # zero times infinity is not zero
                    flat = flat.masked_fill(by_example.unsqueeze(1) == 0, 0)
                sums[name][replica] += (by_example @ flat).view(gradient.shape[1:])
        return {id(value): sums[name].to(factors.dtype) for name, value in self.values.items()}

    def _gradients(self, delta: Tensor) -> Iterator[tuple[int, slice, dict[str, Tensor]]]:
        """Yield the gradients of the examples of each replica, a chunk of them at a time."""
        size = sum(value[0].numel() for value in self.values.values())
        chunk = max(1, NUMBERS_AT_ONCE // size)
        for replica in range(delta.shape[0]):
            own = {name: value[replica].detach() for name, value in self.values.items()}
            read = of_blocks(itemgetter(replica), self.inputs)

            def pulled(example: Any, weight: Tensor, own: Any = own, number: int = replica) -> Any:
                def weighed(values: Mapping[str, Tensor]) -> Tensor:
                    return (self.function(number, values, example) * weight).sum()

                return grad(weighed)(own)

            for start in range(0, delta.shape[1], chunk):
                rows = slice(start, start + chunk)
                part = of_blocks(itemgetter(rows), read)
                yield replica, rows, vmap(pulled)(part, delta[replica, rows])


def each_example(function: Callable[[Any], Tensor], rows: Any) -> Tensor:
    """Return a function of every row, each computed by itself.

    >>> each_example(lambda row: row @ torch.ones(3, 1), torch.eye(3)).flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    count = len(rows if isinstance(rows, Tensor) else rows[0])
    # There is nothing to map over without rows, but the output has a shape.
    given = rows if count else of_blocks(lambda part: part.new_zeros(1, *part.shape[1:]), rows)
    found: Tensor = vmap(function)(given)
    return found[:count]


def of_blocks(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Return a function of what a network reads: of one tensor, or of each block of a list.

    >>> of_blocks(len, [torch.zeros(2), torch.zeros(3)])
    [2, 3]
    """
    if isinstance(inputs, list | tuple):
        return [function(block) for block in inputs]
    return function(inputs)
