"""The manifests: valid by Kubernetes' schemas, and of one piece with each other and with the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from wattwise_server.rpc.health import LIVENESS, READINESS

from tests.deploy.files import BASE, EXAMPLE, containers, dockerfile, image_settings, of_kind, pods, resources
from tests.deploy.options import options_of

OLDEST = "1.30"
SECRET_FILES = ("database", "database-owner", "server.pem", "server.key", "server.tokens")


@pytest.fixture
def found() -> list[dict[str, Any]]:
    """The resources of the example."""
    return resources(EXAMPLE)


def is_valid(found: list[dict[str, Any]]) -> None:
    """Kubernetes' own schemas know every field of the resources."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate, of the extra dev")
    for version in (OLDEST, validate.latest_version()):
        for resource in found:
            # Of the version itself, and not of an older one that is at hand.
            assert version.startswith(validate.validate(resource, version, strict=True))


def test_resources_are_valid(found: list[dict[str, Any]]) -> None:
    """Every resource is valid, without unknown fields, in the oldest and the newest version."""
    kinds = sorted(each["kind"] for each in found)
    assert kinds == [
        "Deployment",
        "Job",
        "Namespace",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Secret",
        "Secret",
        "Secret",
        "Service",
        "Service",
        "ServiceAccount",
    ]
    is_valid(found)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_makes_the_same(found: list[dict[str, Any]], tmp_path: Path) -> None:
    """Kustomize itself accepts the example, resolves the same resources and hashes the names of two secrets."""
    shutil.copytree(EXAMPLE.parent, tmp_path / "kubernetes")
    example = tmp_path / "kubernetes" / EXAMPLE.name
    (example / "secrets").mkdir()
    for name in SECRET_FILES:
        (example / "secrets" / name).write_text("text")
    done = subprocess.run(["kubectl", "kustomize", example], capture_output=True, text=True, check=True, timeout=120)
    built = list(yaml.safe_load_all(done.stdout))
    is_valid(built)

    def names(them: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in them if each["kind"] != "Secret"}

    assert names(built) == names(found)
    assert {each["metadata"].get("namespace") for each in built} == {None, "wattwise"}
    assert [each["image"] for each in containers(built)] == [each["image"] for each in containers(found)]
    secrets = {each["metadata"]["name"] for each in of_kind(built, "Secret")}
    used = {volume["secret"]["secretName"] for pod in pods(built) for volume in pod["spec"]["volumes"]}
    assert secrets == used
    assert "wattwise-tokens" in secrets
    assert "wattwise-tls" not in secrets


def test_secrets_are_those_that_are_mounted(found: list[dict[str, Any]]) -> None:
    """Each volume is a secret of the example, and each file that a variable names is one of its keys."""
    keys = {each["metadata"]["name"]: set(each["data"]) for each in of_kind(found, "Secret")}
    for pod in pods(found):
        volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        values = [variable["value"].removeprefix("@") for variable in container["env"]]
        files = [Path(value) for value in values if value.startswith("/")]
        assert files
        for file in files:
            assert file.name in keys[mounts[str(file.parent)]]
        assert {str(file.parent) for file in files} == set(mounts)
        owns = "wattwise-database-owner" in volumes.values()
        assert owns is (pod["metadata"]["labels"]["app.kubernetes.io/component"] == "migrate")


def test_commands_and_variables_exist(found: list[dict[str, Any]]) -> None:
    """Each container runs a command of `wattwise` with variables that this command knows."""
    for container in containers(found):
        (command,) = container["args"]
        known = options_of(command)
        for variable in container["env"]:
            assert variable["name"] in known


def test_probes_ask_for_what_is_answered(found: list[dict[str, Any]]) -> None:
    """The probes use the image's port without TLS; nothing but the process decides about a restart."""
    (server,) = (each for each in containers(found) if each["name"] == "server")
    port = int(image_settings()["WATTWISE_HEALTH_ADDRESS"].rpartition(":")[2])
    assert server["readinessProbe"]["grpc"] == {"port": port, "service": READINESS}
    assert server["livenessProbe"]["grpc"] == {"port": port, "service": LIVENESS}
    names = ("ADDRESS", "HEALTH_ADDRESS", "METRICS_ADDRESS")
    ports = {int(image_settings()[f"WATTWISE_{name}"].rpartition(":")[2]) for name in names}
    assert {each["containerPort"] for each in server["ports"]} == ports
    (exposed,) = (step.words for step in dockerfile()[-1] if step.name == "EXPOSE")
    assert set(map(int, exposed)) == ports


def test_rollout_loses_no_call(found: list[dict[str, Any]]) -> None:
    """A new server comes before an old one goes, which has time for its last calls."""
    (deployment,) = of_kind(found, "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    (grace,) = (float(each["value"]) for each in server["env"] if each["name"] == "WATTWISE_GRACE_SECONDS")
    pause = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 5
    assert pod["terminationGracePeriodSeconds"] > grace + pause + 2
    (budget,) = of_kind(found, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]


def test_selectors_find_the_servers(found: list[dict[str, Any]]) -> None:
    """Services, the budget and the spread select the servers, and the network policy the migration as well."""
    (deployment,) = of_kind(found, "Deployment")
    (job,) = of_kind(found, "Job")
    template = deployment["spec"]["template"]
    labels, others = template["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in containers([deployment])[0]["ports"]}
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(found, "PodDisruptionBudget")]
    selectors += [each["labelSelector"]["matchLabels"] for each in template["spec"]["topologySpreadConstraints"]]
    for service in of_kind(found, "Service"):
        assert service["spec"]["clusterIP"] == "None"
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
        selectors.append(service["spec"]["selector"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= others.items()
    (policy,) = of_kind(found, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= (labels.items() & others.items())
    admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert admitted == {ports["grpc"], ports["metrics"]}


def test_pods_have_no_rights(found: list[dict[str, Any]]) -> None:
    """Every pod is within the restricted standard of pod security, writes nothing and has no token of the cluster."""
    (user,) = (step.words[0] for step in dockerfile()[-1] if step.name == "USER")
    for pod in pods(found):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == user
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"].keys() == {"requests", "limits"}


def test_no_secret_is_committed() -> None:
    """The base has no secret, and git ignores the folders of the example's and of the compose file's."""
    assert not of_kind(resources(BASE), "Secret")
    root = EXAMPLE.parents[2]
    if not (root / ".git").exists():
        pytest.skip("needs a checkout")
    folders = ("deploy/secrets/server/server.key", "deploy/kubernetes/example/secrets/server.key")
    for path in folders:
        done = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=root, check=False)
        assert done.returncode == 0, path
