"""Synthetic tables of a bank and a hospital, with all true labels in a table of their own.

They exercise the whole path from tables to a released model without real data: columns of every
type with missing values and outliers, repeated edges, edges to unknown ids, and a rare class whose
label is known for some nodes only. The seed determines all of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import UnavailableError, check_choice
from gapgnn.rng import experiment_rng

Rng = np.random.Generator


class Example(NamedTuple):
    """The files of an example: name, header and rows; and the text of its schema."""

    tables: dict[str, tuple[Sequence[str], list[Sequence[Any]]]]
    schema: str


def write_example(name: str, folder: Path | str, *, seed: int = 0) -> list[Path]:
    """Write the tables of an example into a new or empty folder and return their paths.

    Args:
        name: ``bank`` or ``hospital``.
        folder: the output folder.
        seed: of the random content.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_example("bank", folder)]
    ['customers.csv', 'payments.csv', 'truth.csv', 'schema.toml']
    """
    make = EXAMPLES[check_choice("name", name, tuple(EXAMPLES))]
    folder = Path(folder)
    example = make(experiment_rng(seed, "example", name))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UnavailableError(f"`out` must be a new or empty folder. Got {str(folder)!r}.")
        for file_name, (header, rows) in example.tables.items():
            written.append(folder / file_name)
            with written[-1].open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(header)
                writer.writerows(rows)
        written.append(folder / "schema.toml")
        written[-1].write_text(example.schema, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(
            f"`out` must be a folder that can be written. Got {str(folder)!r}: {error.strerror}."
        ) from None
    return written


# Columns alone rank customers better than chance, edges much better. Accuracy is not informative,
# because 97 % are of low risk.
CUSTOMERS, PAYMENTS, RINGS = 12_500, 150_000, 9
KNOWN_RISKS, HIGH_RISKS = 0.3, 0.03
CIRCLES = 300
# Codes of digits, some of which begin with 0.
BRANCHES, OCCUPATIONS = 24, 12

BANK_SCHEMA = """\
# Declared by the bank: public knowledge about such a table.

entity = "customer"
link = "payment"

[label]
column = "risk"
classes = ["low", "high"]
rates = [0.97, 0.03]

[columns.age]
type = "number"
low = 18
high = 100

[columns.opened]
type = "date"
format = "%Y-%m-%d"
low = "2000-01-01"
high = "2026-12-31"

[columns.balance]
type = "number"
low = 0
high = 20000

[columns.income]
type = "number"
low = 0
high = 150000

[columns.cash_share]
type = "number"
low = 0
high = 1

[columns.devices]
type = "number"
low = 0
high = 10

[columns.segment]
type = "category"
values = ["business", "private", "retail", "student"]

[columns.region]
type = "category"
values = ["centre", "coast", "east", "north", "south", "west"]

[columns.branch]
type = "category"
values = [{branches}]

[columns.occupation]
type = "category"
values = [{occupations}]

[columns.note]
type = "ignore"
"""


def _branch_codes() -> NDArray[np.str_]:
    return np.array([f"{7 * number + 4:03d}" for number in range(BRANCHES)])


def _occupation_codes() -> NDArray[np.str_]:
    return np.array([f"{417 * number + 110:04d}" for number in range(OCCUPATIONS)])


def _listed(codes: NDArray[np.str_]) -> str:
    return ", ".join(f'"{code}"' for code in codes.tolist())


def _bank(rng: Rng) -> Example:
    is_high = rng.permutation(CUSTOMERS) < HIGH_RISKS * CUSTOMERS
    circle = rng.integers(0, CIRCLES, CUSTOMERS)
    ring = np.where(is_high, rng.integers(0, RINGS, CUSTOMERS), -1)
    ids = np.array([f"C{number:05d}" for number in rng.permutation(90_000)[:CUSTOMERS]])
    is_known = rng.random(CUSTOMERS) < KNOWN_RISKS
    risk = np.where(is_high, "high", "low")
    recent = rng.random(CUSTOMERS) ** np.where(is_high, 0.5, 1.0)
    segments = np.array(["retail", "student", "business", "private"])
    usual, risky = [0.62, 0.14, 0.15, 0.09], [0.5, 0.15, 0.28, 0.07]
    columns = {
        "id": ids,
        "age": np.clip(rng.normal(np.where(is_high, 41, 47), 16), 18, 95).astype(int),
        "opened": _dates(date(2001, 1, 1), date(2026, 6, 30), recent),
        "balance": _money(rng, np.where(is_high, 7.2, 7.9), 1.4),
        "income": _with_gaps(rng, _money(rng, 10.4, 0.6), 0.12),
        "cash_share": rng.beta(np.where(is_high, 2.4, 1.5), 4).round(3),
        "devices": rng.poisson(np.where(is_high, 2.7, 1.9)),
        "segment": segments[_draw(rng, is_high, usual, risky)],
        "region": rng.choice(["north", "south", "east", "west", "coast", "centre"], CUSTOMERS),
        "branch": _branch_codes()[circle % BRANCHES],
        "occupation": rng.choice(_occupation_codes(), CUSTOMERS),
        "note": [f"case {rng.integers(10**9):09d}, see file" for _ in range(CUSTOMERS)],
        "risk": np.where(is_known, risk, ""),
    }
    senders = rng.integers(0, CUSTOMERS, PAYMENTS)
    targets = np.empty(PAYMENTS, dtype=np.int64)
    mates = {key: np.flatnonzero(ring == key) for key in range(RINGS)}
    near = {key: np.flatnonzero(circle == key) for key in range(CIRCLES)}
    shops = rng.choice(CUSTOMERS, 60, replace=False)
    mood = rng.random(PAYMENTS)
    for row, sender in enumerate(senders.tolist()):
        if is_high[sender] and mood[row] < 0.65:
            targets[row] = rng.choice(mates[int(ring[sender])])
        elif mood[row] < 0.75:
            targets[row] = rng.choice(near[int(circle[sender])])
        else:
            targets[row] = rng.choice(shops) if mood[row] < 0.9 else rng.integers(CUSTOMERS)
    # Standing orders repeat the same pair.
    again = rng.random(PAYMENTS) < 0.15
    earlier = (rng.random(PAYMENTS) * np.arange(PAYMENTS)).astype(np.int64)
    senders[again], targets[again] = senders[earlier[again]], targets[earlier[again]]
    payer, payee = ids[senders].astype(object), ids[targets].astype(object)
    outside = np.array([f"X{number:04d}" for number in range(400)], dtype=object)
    for end, share in ((payer, 0.02), (payee, 0.04)):
        is_outside = rng.random(PAYMENTS) < share
        end[is_outside] = rng.choice(outside, int(is_outside.sum()))
    amounts = _money(rng, np.where(is_high[senders], 5.4, 4.4), 1.1)
    days = _dates(date(2025, 11, 1), date(2026, 10, 31), rng.random(PAYMENTS))
    payments = _rows([payer, payee, amounts, days])
    return Example(
        {
            "customers.csv": (list(columns), _rows(columns.values())),
            "payments.csv": (["payer", "payee", "amount", "day"], payments),
            "truth.csv": (["id", "risk"], _rows([ids, risk])),
        },
        BANK_SCHEMA.format(
            branches=_listed(_branch_codes()), occupations=_listed(_occupation_codes())
        ),
    )


PATIENTS, WARDS, KNOWN_OUTCOMES = 6_000, 60, 0.6

HOSPITAL_SCHEMA = """\
# Declared by the hospital: public knowledge about such a table.

entity = "patient"
link = "contact"

[label]
column = "readmitted"
classes = ["no", "yes"]
rates = [0.8, 0.2]

[columns.age]
type = "number"
low = 0
high = 110

[columns.admitted]
type = "date"
format = "%Y-%m-%d"
low = "2026-01-01"
high = "2026-12-31"

[columns.days]
type = "number"
low = 0
high = 60

[columns.medications]
type = "number"
low = 0
high = 30

[columns.diagnosis]
type = "category"
values = ["cardiac", "digestive", "infection", "injury", "lung", "nerves", "other group"]

[columns.emergency]
type = "category"
values = ["no", "yes"]
"""


def _hospital(rng: Rng) -> Example:
    ward = rng.integers(0, WARDS, PATIENTS)
    burden = rng.normal(0, 1, WARDS)[ward] + rng.normal(0, 0.8, PATIENTS)
    groups = ["cardiac", "digestive", "infection", "injury", "lung", "nerves", "other group"]
    diagnosis = (ward % len(groups) + (rng.random(PATIENTS) < 0.3)) % len(groups)
    age = np.clip(rng.normal(58 + 4 * burden, 19), 0, 104).astype(int)
    days = np.clip(rng.gamma(2, 2.5 + np.maximum(burden, 0)), 1, 120).astype(int)
    comes_back = burden + 0.03 * (age - 58) + rng.normal(0, 0.7, PATIENTS)
    is_back = comes_back > np.quantile(comes_back, 0.8)
    ids = np.array([f"P{number:05d}" for number in rng.permutation(90_000)[:PATIENTS]])
    outcome = np.where(is_back, "yes", "no")
    is_known = rng.random(PATIENTS) < KNOWN_OUTCOMES
    columns = {
        "id": ids,
        "age": age,
        "admitted": _dates(date(2026, 1, 1), date(2026, 10, 31), rng.random(PATIENTS)),
        "days": days,
        "medications": _with_gaps(rng, rng.poisson(4 + np.maximum(burden, 0)), 0.05),
        "diagnosis": np.array(groups)[diagnosis],
        "emergency": np.where(rng.random(PATIENTS) < 0.4 + 0.1 * np.sign(burden), "yes", "no"),
        "readmitted": np.where(is_known, outcome, ""),
    }
    members = {key: np.flatnonzero(ward == key) for key in range(WARDS)}
    contacts: list[Sequence[Any]] = []
    for patient in range(PATIENTS):
        # Most contacts are on the same ward, a few in examinations.
        count = 4 + int(rng.integers(0, 8))
        others = rng.choice(members[int(ward[patient])], count)
        others = np.where(rng.random(count) < 0.15, rng.integers(0, PATIENTS, count), others)
        contacts += [(ids[patient], ids[other]) for other in others.tolist()]
    return Example(
        {
            "patients.csv": (list(columns), _rows(columns.values())),
            "contacts.csv": (["patient", "contact"], contacts),
            "truth.csv": (["id", "readmitted"], _rows([ids, outcome])),
        },
        HOSPITAL_SCHEMA,
    )


EXAMPLES: dict[str, Callable[[Rng], Example]] = {"bank": _bank, "hospital": _hospital}


def _dates(first: date, last: date, shares: NDArray[np.float64]) -> list[str]:
    """Return ISO dates at these shares of a span."""
    span = (last - first).days
    return [(first + timedelta(days=int(share * span))).isoformat() for share in shares.tolist()]


def _money(rng: Rng, mean: Any, spread: float) -> NDArray[np.float64]:
    """Return amounts with cents whose logarithm is normal; a few are very large."""
    size = np.shape(mean) or (CUSTOMERS,)
    return np.exp(rng.normal(mean, spread, size)).round(2)


def _with_gaps(rng: Rng, values: NDArray[Any], share: float) -> list[Any]:
    """Return values with a share of them missing."""
    gaps = rng.random(len(values)) < share
    return ["" if gap else value for gap, value in zip(gaps, values.tolist(), strict=True)]


def _draw(
    rng: Rng, is_high: NDArray[np.bool_], usual: list[float], risky: list[float]
) -> NDArray[np.int64]:
    """Draw a category for each customer, with other probabilities at high risk."""
    size = len(is_high)
    return np.where(
        is_high, rng.choice(len(risky), size, p=risky), rng.choice(len(usual), size, p=usual)
    )


def _rows(columns: Iterable[Any]) -> list[Sequence[Any]]:
    return list(
        zip(*(c.tolist() if isinstance(c, np.ndarray) else c for c in columns), strict=True)
    )
