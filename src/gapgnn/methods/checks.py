"""Checks of parameters that all methods share, before any data is read."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapgnn.errors import (
    InputError,
    PrivacyError,
    check_all,
    check_choice,
    check_integer,
    check_number,
)
from gapgnn.methods.registry import recommended_method
from gapgnn.privacy import LEVELS, check_delta, check_finite_budget, resolve_relation
from gapgnn.training import METRICS

if TYPE_CHECKING:
    from gapgnn.methods.estimator import NodeClassifier


def check_level(config: NodeClassifier[Any]) -> None:
    """Raise unless the method has the level; what else can work depends on it."""
    check_choice("level", config.level, LEVELS)
    if config.level not in config.levels:
        known, other = " or ".join(config.levels), recommended_method(config.level)
        raise InputError(
            f"`level` must be {known} for {config.method}. Got {config.level!r}; use {other}."
        )


def check_run(config: NodeClassifier[Any]) -> None:
    """Raise if parameters of a run cannot work, or choose by what is private at the level."""
    check_choice("noise", config.noise, ("safe", "fast"))
    check_choice("split", config.split, ("fresh", "fixed"))
    check_integer("repeats", config.repeats, at_least=1)
    check_integer("seed", config.seed, at_least=0)
    if config.insecure_noise_seed is not None:
        check_integer("insecure_noise_seed", config.insecure_noise_seed, at_least=0)
    if config.train_size != "auto":
        check_integer("train_size", config.train_size, at_least=1)
    check_choice("metric", config.metric, ("auto", *METRICS))
    if config.metric != "auto" and config.level == "node":
        raise PrivacyError(
            "`metric` must be auto at level node: decisions would follow the labels of the "
            f"validation nodes, which are private. Got {config.metric}."
        )
    _check_threshold(config)
    choose_device(config.device)


# More hops than any graph is wide, and sizes that no index of a tensor holds.
MOST_HOPS, MOST_SIZE = 1_000, 2**31 - 1


def check_sizes(config: object) -> None:
    """Refuse whole numbers that no machine can mean, before anything is planned with them.

    >>> from gapgnn.methods import LabelGAP
    >>> check_sizes(LabelGAP(hops=10**20))
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `hops` must be at most 1000. Got 100000000000000000000.
    """
    sizes = {
        name: value
        for name, value in vars(config).items()
        if type(value) is int and not name.endswith(("seed", "_"))
    }
    check_all(
        *(
            partial(check_number, name, value, at_most=MOST_HOPS if name == "hops" else MOST_SIZE)
            for name, value in sizes.items()
        )
    )


def _check_threshold(config: NodeClassifier[Any]) -> None:
    if config.threshold == "auto" and config.level == "node":
        raise PrivacyError(
            "`threshold` must be a number at level node: choosing it reads the labels of the "
            "validation nodes, which are private. Got auto."
        )
    if config.threshold == "rate" and config.level == "node":
        raise PrivacyError(
            "`threshold` must be prior or a number at level node: who is among the highest "
            "depends on everybody's records, so that the answer about one person would tell "
            "of others. Got rate."
        )
    if config.threshold == "prior" and config.class_weight is not None:
        raise InputError(
            "`threshold` prior must not come with `class_weight`: probabilities that were "
            "trained with weights are not compared with rates. Got both; choose one."
        )
    if config.threshold not in (None, "auto", "rate", "prior"):
        check_number("threshold", config.threshold, above=0, below=1)


def check_budget(config: NodeClassifier[Any]) -> None:
    """Raise if relation, epsilon or delta cannot work."""
    resolve_relation(config.level, config.relation, is_directed=False)
    if config.level != "none":
        check_finite_budget(config.level, config.epsilon)
        check_delta(config.delta)


def check_batches(config: NodeClassifier[Any], *, uses_batch_norm: bool) -> None:
    """Raise if batches would let one record move more than its clip, or cannot be normalised."""
    dropout = config.get_params().get("dropout", 0)
    if config.level == "node" and dropout not in ("auto", 0):
        raise PrivacyError(
            "`dropout` must be 0 at level node: masks that are drawn row after row change for "
            "everybody behind a person who joins a batch, so one record would move more than "
            f"its clip. Got {dropout}. Set dropout to 0."
        )
    if config.level == "node" and uses_batch_norm:
        raise PrivacyError(
            "`batch_norm` mixes the nodes of a batch, so one person's gradient cannot be "
            "clipped at level node. Set batch_norm to auto or false."
        )
    if config.batch_size == 1 and uses_batch_norm:
        raise InputError(
            "`batch_size` must be at least 2 with batch norm. Got 1. Set batch_norm to false."
        )


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def choose_device(device: str) -> torch.device:
    """Resolve ``auto|cpu|cuda``; asking for a GPU that is not there is an error.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    check_choice("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device` is cuda, but no CUDA device is available. Use cpu or auto.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
