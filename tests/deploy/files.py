"""Reads the files of deploy/ as those do who use them."""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE, EXAMPLE = DEPLOY / "kubernetes/base", DEPLOY / "kubernetes/example"


class Step(NamedTuple):
    """An instruction of a Dockerfile, such as `RUN` and what follows it."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """What follows, as the words of an exec form or of a shell."""
        return json.loads(self.rest) if self.rest.startswith("[") else shlex.split(self.rest)


def dockerfile() -> list[list[Step]]:
    """The instructions of each stage; the first has those before any."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: list[list[Step]] = [[]]
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append(Step(name, rest.strip()))
    return stages


def commands_for_secrets() -> tuple[str, str]:
    """The commands of the README that create secrets, for the compose file and for Kubernetes."""
    compose_file, kubernetes = re.findall(r"```sh\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    return compose_file, kubernetes


def image_settings() -> dict[str, str]:
    """The variables of the image."""
    return dict(word.split("=", 1) for step in dockerfile()[-1] if step.name == "ENV" for word in step.words)


def in_build_context(path: str) -> bool:
    """Whether a file of the checkout is sent to the container engine, by .dockerignore."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        found = [*map(str, Path(path).parents), path]
        if any(fnmatch(part, pattern.removeprefix("**/")) or fnmatch(part, pattern) for part in found):
            sent = line.startswith("!")
    return sent


def compose() -> dict[str, Any]:
    """The compose file."""
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def resources(folder: Path) -> list[dict[str, Any]]:
    """What a kustomization makes: its resources, with its namespace, its images, its settings and its secrets."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {
        "apiVersion",
        "kind",
        "namespace",
        "resources",
        "images",
        "secretGenerator",
        "labels",
        "configMapGenerator",
    }
    assert kustomization.keys() <= known, "this reader does not know the others"
    found: list[dict[str, Any]] = []
    for name in kustomization["resources"]:
        path = folder / name
        found += resources(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for settings in kustomization.get("configMapGenerator", ()):
        data = dict(literal.split("=", 1) for literal in settings["literals"]) | _keys(settings["files"])
        metadata = {"name": settings["name"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for secret in kustomization.get("secretGenerator", ()):
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": secret["name"]},
                "type": secret.get("type", "Opaque"),
                "data": _keys(secret["files"]),
            }
        )
    for image in kustomization.get("images", ()):
        for container in containers(found):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    for each in found:
        for label in kustomization.get("labels", ()):
            each["metadata"]["labels"] = {**each["metadata"].get("labels", {}), **label["pairs"]}
        if "namespace" in kustomization and each["kind"] != "Namespace":
            each["metadata"]["namespace"] = kustomization["namespace"]
    return found


def _keys(files: list[str]) -> dict[str, str]:
    return {file.partition("=")[0].rpartition("/")[2]: "" for file in files}


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pod templates."""
    return [each["spec"]["template"] for each in found if "template" in each.get("spec", {})]


def containers(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The containers of all pods."""
    return [container for pod in pods(found) for container in pod["spec"]["containers"]]


def variables_of(container: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, str]:
    """The variables of a container, as Kubernetes resolves them among the resources."""
    values: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value", "")
        for source, wish in variable.get("valueFrom", {}).items():
            if source == "configMapKeyRef":
                (settings,) = (each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"] == wish["name"])
                value = settings["data"][wish["key"]]
            else:
                assert (source, wish) == ("fieldRef", {"fieldPath": "metadata.namespace"})
                value = of_kind(found, "Deployment")[0]["metadata"]["namespace"]
        # What is named has to be above.
        values[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], value)
    return values


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The resources of one kind."""
    return [each for each in found if each["kind"] == kind]
