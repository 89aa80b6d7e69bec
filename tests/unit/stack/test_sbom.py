"""The bill of materials has every pinned package, and the page of licences is its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.stack.sbom import LICENCES, REQUIREMENTS, bill_of, licence_list, normalized, read_packages

PACKAGES = read_packages(REQUIREMENTS)


def test_every_pinned_package_is_a_component_with_a_licence() -> None:
    lines = REQUIREMENTS.read_text().splitlines()
    pinned = {line.split("==")[0].split("[")[0] for line in lines if re.match("[A-Za-z0-9]", line)}
    bill = bill_of(PACKAGES)
    components = bill["components"]
    assert {normalized(one["name"]) for one in components} == set(map(normalized, pinned))
    for one in components:
        [licence] = one["licenses"]
        assert licence.get("expression") or licence["license"]["name"] != "not stated", one
        assert one["purl"] == f"pkg:pypi/{normalized(one['name'])}@{one['version']}"


def test_bill_has_the_form_of_cyclonedx_and_is_the_same_each_time() -> None:
    bill = bill_of(PACKAGES)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    refs = {one["bom-ref"] for one in bill["components"]}
    assert len(refs) == len(PACKAGES)
    depending = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    assert depending.keys() == refs | {"fairline"}
    assert set().union(*depending.values()) == refs
    celery, kombu = (
        next(ref for ref in refs if ref.startswith(f"pkg:pypi/{name}@"))
        for name in ("celery", "kombu")
    )
    assert kombu in depending[celery]
    assert bill == bill_of(read_packages(REQUIREMENTS))


def test_page_of_licences_is_what_make_sbom_writes() -> None:
    assert LICENCES.read_text() == licence_list(PACKAGES), "run make sbom"


@pytest.mark.parametrize(
    ("pin", "told"),
    [("celery==0.0.1", "not 0.0.1"), ("no-such-package-at-all==1.0", "is not installed")],
)
def test_what_is_not_installed_as_pinned_is_told(tmp_path: Path, pin: str, told: str) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"{pin}\n")
    with pytest.raises(SystemExit, match=told):
        read_packages(pins)
