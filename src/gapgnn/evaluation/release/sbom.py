"""A CycloneDX bill of materials of the environment that made a release.

It lists every installed Python package with its version, and what each requires of the others. The
same environment gives the same bytes: there is no time in it, and the serial number is a hash of
the content. The model may have been trained elsewhere; the card says with which version of gapgnn.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, distributions
from typing import Any

from gapgnn import __version__
from gapgnn.evaluation.release.files import SBOM

SPECIFICATION = "1.6"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
# What a licence expression looks like; longer texts are whole licences, which are left out.
_EXPRESSION = re.compile(r"[A-Za-z0-9.+()-]+( (AND|OR|WITH) [A-Za-z0-9.+()-]+)*")


def bill_of_materials(installed: Iterable[Distribution] | None = None) -> dict[str, Any]:
    """Return the bill of materials of this environment.

    Args:
        installed: the packages; left out: all that Python finds.

    >>> bill = bill_of_materials()
    >>> bill["metadata"]["component"]["name"], bill == bill_of_materials()
    ('gapgnn', True)
    """
    if installed is None:
        return copy.deepcopy(_of_this_environment())
    found: dict[str, Distribution] = {}
    for one in installed:
        # Of several on the path the first is imported.
        if name := one.metadata["Name"]:
            found.setdefault(_normal(name), one)
    own_package = found.pop("gapgnn", None)
    components = [_component(name, one) for name, one in sorted(found.items())]
    own = {
        "type": "library",
        "bom-ref": _reference("gapgnn", __version__),
        "name": "gapgnn",
        "version": __version__,
        "purl": _reference("gapgnn", __version__),
    }
    python = {
        "type": "platform",
        "bom-ref": "python",
        "name": platform.python_implementation(),
        "version": platform.python_version(),
    }
    versions = {name: str(one.version) for name, one in found.items()}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {"component": own},
        "components": [python, *components],
        "dependencies": _dependencies({"gapgnn": own_package, **found}, versions),
    }
    return {**content, "serialNumber": serial_number(content)}


@cache
def _of_this_environment() -> dict[str, Any]:
    return bill_of_materials(distributions())


def serial_number(content: Mapping[str, Any]) -> str:
    """Return the serial number that follows from everything else in a bill of materials."""
    others = {name: value for name, value in content.items() if name != "serialNumber"}
    digest = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
    # The form of a UUID of version 8, whose bits may mean anything.
    parts = digest[:8], digest[8:12], f"8{digest[13:16]}", f"a{digest[17:20]}", digest[20:32]
    return f"urn:uuid:{'-'.join(parts)}"


def problems_of(bill: Mapping[str, Any], version: str) -> list[str]:
    """Return what is wrong with a bill of materials.

    Args:
        bill: as it was read.
        version: of gapgnn, as the release states it.
    """
    try:
        if (bill["bomFormat"], bill["specVersion"]) != ("CycloneDX", SPECIFICATION):
            return [f"{SBOM} must be CycloneDX {SPECIFICATION}"]
        if bill["serialNumber"] != serial_number(bill):
            return [f"the serial number of {SBOM} is not that of its content"]
        own = bill["metadata"]["component"]
        if (own["name"], own["version"]) != ("gapgnn", version):
            return [
                f"{SBOM} is of {own['name']} {own['version']}, release.json of gapgnn {version}"
            ]
        listed = [one["bom-ref"] for one in bill["components"]]
        known = {own["bom-ref"], *listed}
        if len(known) <= len(listed):
            return [f"{SBOM} lists a component twice"]
        used = {name for one in bill["dependencies"] for name in (one["ref"], *one["dependsOn"])}
        if not used <= known:
            return [f"{SBOM} names a component that it does not list"]
    except (KeyError, TypeError) as error:
        return [f"{SBOM} cannot be read: {error!r}"]
    return []


def _component(name: str, one: Distribution) -> dict[str, Any]:
    version = str(one.version)
    values: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(name, version),
        "name": name,
        "version": version,
        "purl": _reference(name, version),
    }
    stated = "License-Expression" in one.metadata
    licence = one.metadata["License-Expression"] if stated else ""
    if _EXPRESSION.fullmatch(licence):
        values["licenses"] = [{"expression": licence}]
    return values


def _dependencies(
    found: Mapping[str, Distribution | None], versions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return which installed package requires which others, whatever extra asks for them."""
    rows = []
    for name, one in sorted(found.items()):
        texts = (one.requires or []) if one is not None else []
        needed = {_normal(match[1]) for text in texts if (match := _REQUIREMENT.match(text))}
        needed &= set(versions) - {name}
        refs = [_reference(other, versions[other]) for other in sorted(needed)]
        version = versions.get(name, __version__)
        rows.append({"ref": _reference(name, version), "dependsOn": refs})
    return rows


def _normal(name: str) -> str:
    """Return a package's name as the index compares it.

    >>> _normal("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _reference(name: str, version: str) -> str:
    # A version may be local, as in 2.0+cpu.
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
