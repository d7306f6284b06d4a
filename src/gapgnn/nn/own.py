"""Networks of users' own as parts of the library's methods: any torch module, for R replicas.

A user's factory builds one network for rows ``(nodes, columns)``. :class:`OwnNetwork` holds one
copy of its parameters for each replica, so that the library's trainer, folders and DP-SGD treat it
as their own. Where a row must be computed from one person's record alone (node level) every row is
read as a batch of its own, by ``torch.func.vmap``: then no row can depend on another one, whatever
the network does, and gradients are clipped example by example
(:mod:`gapgnn.privacy.dpsgd.per_example`; privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gapgnn.errors import InputError, PrivacyError
from gapgnn.nn.gap import Encoded
from gapgnn.nn.layers import ReplicaLinear, StartsReplicas
from gapgnn.privacy.dpsgd import (
    PerExampleRecord,
    active_tape,
    each_example,
    is_message_passing,
    of_blocks,
    record_linears,
)
from gapgnn.rng import experiment_seed

# Rows of the trial before anything is charged: any small number that is nobody's.
TRIAL_ROWS = 3


class OwnNetwork(StartsReplicas):
    """A user's network, one copy of its parameters and buffers for each of R replicas.

    Args:
        replicas: R.
        build: returns the network of one replica, with new initial weights.
        name: of the parameter that gave the factory, for errors.
        widths: columns of the rows that it reads: one number, or several for a list of blocks.
        out: columns that it must return.
        one_by_one: read every row as a batch of its own.

    >>> own = OwnNetwork(2, lambda: nn.Linear(4, 3), name="encoder", widths=4, out=3)
    >>> own(torch.ones(5, 4)).shape
    torch.Size([2, 5, 3])
    """

    reports_to_tape = True

    def __init__(
        self,
        replicas: int,
        build: Callable[[], nn.Module],
        *,
        name: str,
        widths: int | Sequence[int],
        out: int,
        one_by_one: bool = False,
    ) -> None:
        super().__init__()
        self.replicas, self.one_by_one = replicas, one_by_one
        self._build, self._name = build, name
        self._seeds: list[int] = []
        self._calls = 0
        template = self._built(seed=0)
        _check_parts(template, name, one_by_one=one_by_one)
        # In a list: its parameters are not parameters of this module, which holds those of all
        # replicas.
        self._template = [template]
        self._shapes = {key: value.shape for key, value in template.named_parameters()}
        for key, value in template.named_parameters():
            copies = torch.stack([value.detach()] * replicas)
            # A number becomes a row: all parameters have an axis behind that of the replicas.
            copies = copies if copies.ndim > 1 else copies.unsqueeze(1)
            self.register_parameter(_flat(key), nn.Parameter(copies, value.requires_grad))
        self._buffer_names = [key for key, _ in template.named_buffers()]
        for key, buffer in template.named_buffers():
            self.register_buffer(_flat(key), torch.stack([buffer.detach()] * replicas))
        self._check_trial(widths, out)

    def _built(self, seed: int) -> nn.Module:
        """Return a new network; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            found = self._build()
        if not isinstance(found, nn.Module):
            raise InputError(
                f"`{self._name}` must return a torch module. Got {type(found).__name__}."
            )
        if any(nn.parameter.is_lazy(value) for value in found.parameters()):
            raise InputError(
                f"`{self._name}` must return a module with all of its parameters. Got a lazy one: "
                "it is given the sizes."
            )
        return found

    def _check_trial(self, widths: int | Sequence[int], out: int) -> None:
        """Refuse, before anything is charged, a network that does not work on rows it is given."""
        if any(value.is_meta for value in self.parameters()):
            return
        rows = of_blocks(lambda width: torch.zeros(TRIAL_ROWS, width), widths)
        self.train()
        buffers = {key: value.clone() for key, value in self.named_buffers()}
        try:
            with torch.random.fork_rng(devices=[]), record_linears() as tape:
                found = self(rows)[0]
            if self.one_by_one:
                # What cannot be clipped fails here, and not after the charge.
                tape.records[0].squared_norms(torch.ones_like(tape.records[0].outputs))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            wanted = f"take {'rows' if isinstance(widths, int) else 'a list of rows'}"
            raise InputError(
                f"`{self._name}` must {wanted} of any number of nodes, "
                f"{'each computed by itself, ' if self.one_by_one else ''}and return {out} columns."
                f" Calling it failed: {reason}"
            ) from error
        finally:
            for key, value in self.named_buffers():
                value.copy_(buffers[key])
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != (TRIAL_ROWS, out):
            raise InputError(
                f"`{self._name}` must return a row of {out} columns for each node. Got {shape} for "
                f"{TRIAL_ROWS} nodes."
            )

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Start every replica with initial weights of its own."""
        self._seeds = [
            int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
            for generator in generators
        ]
        self._calls = 0
        with torch.no_grad():
            for replica, seed in enumerate(self._seeds):
                fresh = self._built(seed)
                for key, value in (*fresh.named_parameters(), *fresh.named_buffers()):
                    own = getattr(self, _flat(key))[replica]
                    own.copy_(value.reshape(own.shape))

    def train(self, mode: bool = True) -> OwnNetwork:
        """Set training or evaluation mode, of the user's network too."""
        super().train(mode)
        self._template[0].train(mode)
        return self

    def forward(self, inputs: Any) -> Tensor:
        """Return the network's outputs, ``(R, N, out)``.

        Args:
            inputs: rows ``(R, N, columns)``, ``(N, columns)`` shared by all replicas, or a list of
                such blocks, as the network reads them.
        """
        shared = of_blocks(
            lambda part: part if part.ndim == 3 else part.expand(self.replicas, *part.shape), inputs
        )
        tape = active_tape()
        if tape is None:
            self._calls += self.training
            return torch.stack([self._replica_of(shared, one) for one in range(self.replicas)])
        with torch.no_grad():
            outputs = torch.stack([self._replica_of(shared, one) for one in range(self.replicas)])
        outputs.requires_grad_()
        values = {key: getattr(self, _flat(key)) for key in self._shapes}
        trained = {key: value for key, value in values.items() if value.requires_grad}
        tape.add(PerExampleRecord(self._of_example, trained, shared, outputs))
        return outputs

    def _replica_of(self, shared: Any, replica: int) -> Tensor:
        return self._of_replica(replica, of_blocks(lambda part: part[replica], shared))

    def _of_replica(self, replica: int, rows: Any) -> Tensor:
        """Return the outputs of one replica for all of its rows."""
        values = {key: getattr(self, _flat(key))[replica] for key in self._shapes}
        if self.one_by_one:
            return each_example(lambda row: self._of_example(replica, values, row), rows)
        if not (self.training and self._seeds):
            return self._called(replica, values, rows)
        # What it draws, as dropout does, follows from the replica's seed and the number of calls.
        seed = experiment_seed(self._seeds[replica], "own network", self._calls)
        device = (rows if isinstance(rows, Tensor) else rows[0]).device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return self._called(replica, values, rows)

    def _of_example(self, replica: int, values: Mapping[str, Tensor], row: Any) -> Tensor:
        """Return the output for one example, read as a batch of its own."""
        frozen = {key: getattr(self, _flat(key))[replica] for key in self._shapes.keys() - values}
        alone = of_blocks(lambda part: part.unsqueeze(0), row)
        return self._called(replica, {**frozen, **values}, alone).squeeze(0)

    def _called(self, replica: int, values: Mapping[str, Tensor], rows: Any) -> Tensor:
        """Return what the user's network makes of rows, with the state of one replica."""
        state = {key: value.view(self._shapes[key]) for key, value in values.items()}
        state |= {key: getattr(self, _flat(key))[replica] for key in self._buffer_names}
        found: Tensor = functional_call(self._template[0], state, (rows,))
        return found


def _check_parts(network: nn.Module, name: str, *, one_by_one: bool) -> None:
    """Refuse parts that read edges, and at node level those that mix people or draw by place."""
    if not any(value.requires_grad for value in network.parameters()):
        raise InputError(f"`{name}` must return a module with parameters to train. Got none.")
    for part in network.modules():
        called = type(part).__name__
        if is_message_passing(part):
            raise PrivacyError(
                f"`{name}` must read rows, not edges. Got a `{called}`: send its rows through "
                "`gapgnn.PrivateHops`, or train it by `gapgnn.dp_sgd` at level node."
            )
        if one_by_one and isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise PrivacyError(
                f"`{name}` must compute each person's row by itself at level node. Got a "
                f"`{called}`, which mixes the rows of a batch: use nn.LayerNorm or nn.GroupNorm."
            )
        if one_by_one and isinstance(part, nn.modules.dropout._DropoutNd) and part.p:
            raise PrivacyError(
                f"`{name}` must not draw at level node, where a mask by place in the batch changes "
                f"for everybody behind a person who leaves. Got a `{called}`: leave it out."
            )


def _flat(name: str) -> str:
    """Return the name of a parameter as a module may hold it, which allows no dot."""
    return "own/" + name.replace(".", "/")


class OwnEncoder(nn.Module):
    """Embeddings by a user's network, with a linear softmax head that trains them.

    >>> body = OwnNetwork(1, lambda: nn.Linear(4, 3), name="encoder", widths=4, out=3)
    >>> OwnEncoder(body, 3, 2)(torch.ones(5, 4)).shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, body: OwnNetwork, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = ReplicaLinear(body.replicas, hidden, num_classes)

    def embed(self, inputs: Any) -> Tensor:
        """Return the embeddings, shape (replicas, nodes, hidden)."""
        codes: Tensor = self.body(inputs)
        return codes

    def forward(self, inputs: Any) -> Tensor:
        """Return class scores (logits) from the embeddings."""
        scores: Tensor = self.head(self.embed(inputs))
        return scores


class OwnClassifier(nn.Module):
    """Class scores of all hops by a user's network, which reads them as a list."""

    def __init__(self, body: OwnNetwork) -> None:
        super().__init__()
        self.body = body

    def encode_first(self, hop: Any) -> Encoded:
        """Return hop 0 as a release keeps it: as it is."""
        return Encoded(hop)

    def forward(self, hops: Sequence[Any]) -> Tensor:
        """Return class scores (logits) for one input per hop."""
        rows = [hop.codes if isinstance(hop, Encoded) else hop for hop in hops]
        scores: Tensor = self.body(rows)
        return scores
