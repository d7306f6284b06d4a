"""What the service answers with: one line of JSON for each id, made before the first request.

The lines are those that `gapgnn predict --cached --out FILE.jsonl` writes. A model answers for the
graph of its training from its own released rows, so nothing private is read and nothing is charged,
however often somebody asks. Predictions of other models are served from such a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gapgnn.errors import DataError, InputError, PrivacyError, UnavailableError

ServedRows = Mapping[str, bytes]


@dataclass(frozen=True)
class Served:
    """Rows by the text of their id, and the privacy card that they come with.

    Attributes:
        rows: a line of JSON for each id.
        card: of the model as JSON; empty for a file of predictions.
    """

    rows: ServedRows
    card: bytes = b""


def rows_of_model(folder: str | Path, *, not_private: bool = False) -> Served:
    """Return the predictions of a saved model for the graph of its training.

    Args:
        folder: of the model.
        not_private: whether a model may be served that promises nothing.
    """
    from gapgnn.methods import EdgeReader, answer_columns, json_line, load_model

    model = load_model(folder, device="cpu")
    card = model.card_
    if card.own == "record":
        raise PrivacyError(
            "predictions of this model read each person's own neighbours, so only that person may "
            "see one. A service that answers for everybody cannot keep that promise."
        )
    if not card.is_private_release and not not_private:
        raise PrivacyError(
            "this model promises no privacy, so its answers are as private as its data. Say "
            "`--not-private` if everybody who holds the token may see that data."
        )
    if not isinstance(model, EdgeReader) or model.level == "node":
        raise InputError(
            f"`--model` must answer from released rows alone. Got {model.method} at {model.level} "
            "level, which needs the features of its people: write predictions with `gapgnn predict "
            "--out labels.jsonl` and serve the file with `--predictions labels.jsonl`."
        )
    probabilities = model.predict_cached()
    ids = model.releases_.training().ids
    columns = answer_columns(model, ids, probabilities, is_training=True)
    columns["probability"] = columns["probability"].tolist()
    names = list(columns)
    lines = {
        str(values[0]): json_line(dict(zip(names, values, strict=True))).encode()
        for values in zip(*columns.values(), strict=True)
    }
    return Served(lines, card.to_json().encode())


def rows_of_file(path: str | Path) -> Served:
    """Return the predictions that a file has, line by line, as they are.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels.jsonl"
    >>> _ = file.write_text('{"id": 7, "label": "north"}\\n')
    >>> rows_of_file(file).rows
    {'7': b'{"id": 7, "label": "north"}\\n'}
    """
    try:
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UnavailableError(
            f"`--predictions` cannot be read: {str(path)!r}: {error.strerror}."
        ) from None
    rows: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        try:
            name = json.loads(line)["id"]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                "`--predictions` must have an object with an `id` in every line. Got another in "
                f"line {number} of {str(path)!r}."
            ) from None
        if str(name) in rows:
            raise DataError(
                f"`--predictions` must name everybody once. Got an id again in line {number}."
            )
        rows[str(name)] = line.rstrip(b"\r\n") + b"\n"
    return Served(rows)
