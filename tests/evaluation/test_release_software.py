"""The bill of materials is CycloneDX, complete, the same every time, and checked."""

from __future__ import annotations

import copy
import json
from importlib.metadata import distributions
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import gapgnn
from gapgnn.evaluation.release.sbom import bill_of_materials, problems_of, serial_number


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return bill_of_materials()


def test_it_passes_the_schema_of_cyclonedx(bill: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill)) is None
    assert validator.validate_str(json.dumps({**bill, "surprise": 1})) is not None


def test_it_lists_every_installed_package_with_its_version(bill: dict[str, Any]) -> None:
    listed = {one["name"]: one["version"] for one in bill["components"]}
    for one in distributions():
        name = one.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        if name != "gapgnn":
            assert name in listed, name
    torch = next(one for one in bill["dependencies"] if one["ref"].startswith("pkg:pypi/gapgnn@"))
    assert any(ref.startswith("pkg:pypi/torch@") for ref in torch["dependsOn"])


def test_it_is_the_same_every_time(bill: dict[str, Any]) -> None:
    assert json.dumps(bill_of_materials()) == json.dumps(bill)
    backwards = bill_of_materials(reversed(list(distributions())))
    names = [one["name"] for one in bill["components"]]
    assert [one["name"] for one in backwards["components"]] == names


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("change", ["version", "component", "twice", "dependency", "format"])
def test_every_change_of_it_is_found(change: str, is_hidden: bool, bill: dict[str, Any]) -> None:
    changed = copy.deepcopy(bill)
    if change == "version":
        changed["metadata"]["component"]["version"] = "9.9"
    elif change == "component":
        changed["components"].pop(5)
    elif change == "twice":
        changed["components"].append(changed["components"][5])
    elif change == "dependency":
        changed["dependencies"][0]["dependsOn"].append("pkg:pypi/surprise@1")
    else:
        changed["specVersion"] = "1.4"
    if is_hidden:
        changed["serialNumber"] = serial_number(changed)
    assert problems_of(changed, gapgnn.__version__)
    assert problems_of(bill, gapgnn.__version__) == []
