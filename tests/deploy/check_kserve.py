"""Checks manifests against the types of KServe's Python package; prints each field that they do not have.

A program of its own: KServe's modules and tritonclient's cannot share a process.

    python tests/deploy/check_kserve.py MANIFEST...
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kserve import models
from kubernetes.client import models as kubernetes_models


def unknown(value: Any, kind: str, place: str) -> Iterator[str]:
    """Places of the fields that `kind` does not have."""
    if of_list := re.fullmatch(r"list\[(.+)\]", kind):
        for i, element in enumerate(value):
            yield from unknown(element, of_list[1], f"{place}[{i}]")
    elif of_dict := re.fullmatch(r"dict\((\w+), (.+)\)", kind):
        for key, element in value.items():
            yield from unknown(element, of_dict[2], f"{place}.{key}")
    elif found := getattr(models, kind, None) or getattr(kubernetes_models, kind, None):
        named = {outside: inside for inside, outside in found.attribute_map.items()}
        for key, element in value.items():
            if key not in named:
                yield f"{place}.{key}"
            else:
                yield from unknown(element, found.openapi_types[named[key]], f"{place}.{key}")


def main(paths: list[str]) -> int:
    """Returns 1 if a manifest has a field that is not known."""
    found: list[str] = []
    for path in paths:
        manifest = yaml.safe_load(Path(path).read_text())
        version = manifest["apiVersion"].rpartition("/")[2].capitalize()
        found += unknown(manifest, version + manifest["kind"], manifest["kind"])
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
