"""One place makes noise, one counts epsilon: who may touch secret randomness, by source.

A file that is not listed here and draws, seeds, makes a key or prices a release fails; so does a
file that is listed and no longer does. A new line needs a reason that a reviewer believes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "gapgnn"
FILES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}

DRAWS = "privacy/mechanisms/draws.py"
NOISE = "privacy/mechanisms/noise.py"

ALLOWED: dict[str, dict[str, str]] = {
    "bytes of a secret key": {
        "rng.py": "defines the key",
        DRAWS: "turns a key into words, uniforms and waiting times",
        NOISE: "the words of a release, and the key of one that a kernel draws for itself",
        "privacy/mechanisms/device.py": "hands that key to the kernel",
        "privacy/mechanisms/aggregation.py": "refuses the same key for two repeats",
        "graph/degree.py": "keys the order in which adjacency lists are cut; no noise",
        "privacy/selection.py": "how many candidates a selection runs, and with which settings",
    },
    "entropy of the system": {
        "rng.py": "the only function that reads it",
        "privacy/ledger/ledger.py": "the public number of a charge",
        "privacy/ledger/chain.py": "the key of a ledger's hashes of people",
        "methods/releases.py": "the public number of a release without a ledger",
        "privacy/checkpoint.py": "a nonce against a copied checkpoint",
        "methods/erasure.py": "the public number of a removal",
    },
    "new key": {
        "rng.py": "defines it",
        "graph/degree.py": "takes the bytes of a caller's key",
        "graph/pyg_transforms.py": "the key of a cut that its caller owns",
        "methods/estimator.py": "one key per run and repeat",
        "methods/dp_sgd.py": "one key per run",
        "privacy/session.py": "the one key of a program of somebody else",
        "audits/aggregation.py": "a trial is a release with its own key",
        "audits/dpsgd.py": "a trial is a training with its own key",
        "audits/edges.py": "a trial is a release with its own key",
        "audits/pure.py": "a trial is a release with its own key",
    },
    "NumPy generator": {
        "rng.py": "seeded experiments",
        DRAWS: "fast draws, from a secret key",
        "nn/layers.py": "masks during training, seeded",
        "nn/sparse_rows.py": "a fixed projection that finds equal rows",
        "training/splits.py": "seeded splits",
    },
    "torch generator or sampler": {
        "rng.py": "seeded experiments",
        DRAWS: "fast draws, from a secret key",
        NOISE: "fast noise, from a generator of draws.py",
        "nn/layers.py": "initial weights and masks during training, seeded",
        "training/roots.py": "dropout of a root, seeded by a secret word of its id",
        "methods/module_checks.py": "trials of a module on made-up rows, seeded",
        "nn/own.py": "initial weights and masks of users' networks, seeded",
        "attacks/attacker.py": "the attacker's own shuffling",
    },
    "noise": {
        NOISE: "noise that a kernel draws",
        DRAWS: "coins are made of the same draws",
        "privacy/mechanisms/aggregation.py": "the hops of PMA",
        "privacy/mechanisms/edges.py": "randomised edges and their number",
        "privacy/mechanisms/labels.py": "randomised labels",
        "privacy/mechanisms/mean_degree.py": "one number: how long lists are",
        "privacy/mechanisms/noisy_count.py": "one number: right answers on validation nodes",
        "privacy/dpsgd/poisson.py": "the coins of Poisson batches",
        "training/trainer.py": "hands DP-SGD its noise, one source per replica",
        "training/roots.py": "hands DP-SGD on sub-graphs its noise",
        "audits/dpsgd.py": "audits the step that training takes",
    },
    "epsilon": {
        "privacy/accounting/accountants.py": "prices events",
        "privacy/accounting/calibration.py": "searches the noise of a budget",
        "privacy/accounting/pld.py": "the PLD accountant",
        "privacy/accounting/tradeoff.py": "the same events as a bound on an attacker",
        "privacy/accounting/conversion.py": "translates events of dp_accounting; prices nothing",
        "privacy/ledger/filters.py": "what a budget's charges come to by the rule it was granted",
        "audits/bounds.py": "a measured distance on the Gaussian curve; no release",
        "audits/pipeline.py": "measured distances on the Gaussian curve; no release",
    },
}

KEY_CALLS = {"bytes", "seed"}
CIPHER = {"cipher_key", "cipher_words", "cipher_blocks"}
ENTROPY = {"system_entropy", "urandom", "getrandom", "getrandbits", "uuid4", "SystemRandom"}
ENTROPY_MODULES = {"secrets", "random", "uuid"}
TORCH_FUNCTIONS = {
    "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.rand_like",
    "torch.randn_like", "torch.randint_like", "torch.normal", "torch.bernoulli", "torch.poisson",
    "torch.multinomial", "torch.binomial", "torch.manual_seed", "torch.seed", "torch.random",
    "torch.default_generator", "torch.distributions",
}  # fmt: skip
TORCH_METHODS = {
    "normal_", "bernoulli_", "exponential_", "uniform_", "random_", "cauchy_", "geometric_",
    "log_normal_", "manual_seed", "manual_seed_all",
}  # fmt: skip
NOISE_MAKERS = {"NoiseSource", "PhiloxNoise", "Coins", "Draws"}
PRICES = {"gaussian_epsilon", "pld_epsilon", "rdp_epsilon"}


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` of a chain of attributes; what it starts from may be anything."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that an import brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield the sort of every use of secret randomness or of a price, with repetitions."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        for name in imported(node):
            yield from _of_import(name)
        if isinstance(node, (ast.Attribute, ast.Name)):
            yield from _of_name(dotted(node), is_call=id(node) in called)


def _of_import(name: str) -> Iterator[str]:
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    if first in ENTROPY_MODULES or last in ENTROPY:
        yield "entropy of the system"
    if name.startswith("numpy.random"):
        yield "NumPy generator"
    if name in TORCH_FUNCTIONS or name == "torch.Generator":
        yield "torch generator or sampler"
    if first == "dp_accounting" or last in PRICES:
        yield "epsilon"


def _of_name(name: str, *, is_call: bool) -> Iterator[str]:
    head, _, last = name.rpartition(".")
    if head and ((last in KEY_CALLS and is_call) or last == "secret"):
        yield "bytes of a secret key"
    if last in CIPHER and is_call:
        yield "bytes of a secret key"
    if last in ENTROPY:
        yield "entropy of the system"
    if (head.endswith("NoiseKey") and last == "fresh") or (last == "NoiseKey" and is_call):
        yield "new key"
    # As a type, a generator is an argument: somebody else made it.
    is_type = last == "Generator" and not is_call
    if name.startswith(("np.random.", "numpy.random.")) and not is_type:
        yield "NumPy generator"
    if name in TORCH_FUNCTIONS or (name == "torch.Generator" and not is_type):
        yield "torch generator or sampler"
    if head and last in TORCH_METHODS:
        yield "torch generator or sampler"
    if last in NOISE_MAKERS and is_call:
        yield "noise"
    # A card and a guarantee have an `rdp_epsilon` too, but nobody has it without an import.
    if last in PRICES - {"rdp_epsilon"}:
        yield "epsilon"


@functools.cache
def sorts_of(tree: ast.Module) -> frozenset[str]:
    """Return the sorts of all uses in a file."""
    return frozenset(uses(tree))


def strangers(files: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Return (sort, file) of every use that is not allowed."""
    found = {(case, file) for file, tree in files.items() for case in sorts_of(tree)}
    return {(case, file) for case, file in found if file not in ALLOWED[case]}


def test_nobody_else_touches_secret_randomness_or_prices_a_release() -> None:
    assert strangers(FILES) == set()


@pytest.mark.parametrize("case", ALLOWED)
def test_everybody_on_the_list_needs_to_be_there(case: str) -> None:
    assert {file for file, tree in FILES.items() if case in sorts_of(tree)} == set(ALLOWED[case])


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("bytes of a secret key", "x = key.bytes(8, 'mine')"),
        ("bytes of a secret key", "x = self._keys[0].seed('mine')"),
        ("bytes of a secret key", "x = key.secret"),
        ("bytes of a secret key", "x = cipher_key(key, 'mine')"),
        ("bytes of a secret key", "x = draws.cipher_words(secret, 0, 0, 1)"),
        ("bytes of a secret key", "x = draws.cipher_blocks(secret, 0, places)"),
        ("entropy of the system", "from gapgnn.rng import system_entropy"),
        ("entropy of the system", "import os\nx = os.urandom(8)"),
        ("entropy of the system", "import secrets"),
        ("entropy of the system", "from random import gauss"),
        ("new key", "key = NoiseKey.fresh()"),
        ("new key", "key = NoiseKey(b'0' * 32)"),
        ("NumPy generator", "x = np.random.default_rng().normal()"),
        ("NumPy generator", "from numpy.random import default_rng"),
        ("NumPy generator", "def f():\n    return np.random.Generator(np.random.PCG64(1))"),
        ("torch generator or sampler", "g = torch.Generator()"),
        ("torch generator or sampler", "x = x + torch.randn(3)"),
        ("torch generator or sampler", "x = torch.empty(3).normal_()"),
        ("torch generator or sampler", "x.bernoulli_(0.5)"),
        ("torch generator or sampler", "torch.manual_seed(0)"),
        ("noise", "source = NoiseSource(key)"),
        ("noise", "source = noise.PhiloxNoise(secret, 1.0)"),
        ("epsilon", "from dp_accounting.pld import privacy_loss_distribution"),
        ("epsilon", "from gapgnn.privacy.accounting import gaussian_epsilon"),
        ("epsilon", "x = accounting.pld_epsilon(events, 1e-5)"),
    ],
)
def test_a_planted_user_is_seen(case: str, line: str) -> None:
    assert strangers({"methods/planted.py": ast.parse(line)}) == {(case, "methods/planted.py")}


def test_a_type_a_field_and_a_key_that_is_passed_on_are_no_use() -> None:
    innocent = """
def f(rng: np.random.Generator, generator: torch.Generator, key: NoiseKey):
    return g(seed=self.seed, keys=[key.derive("part")], cost=card.rdp_epsilon)
"""
    assert strangers({"methods/planted.py": ast.parse(innocent)}) == set()


def test_no_release_draws_from_the_seed_of_an_experiment() -> None:
    for file, tree in FILES.items():
        if file.startswith("privacy/"):
            names = {name.rpartition(".")[2] for node in ast.walk(tree) for name in imported(node)}
            assert not {name for name in names if name.startswith("experiment_")}, file
