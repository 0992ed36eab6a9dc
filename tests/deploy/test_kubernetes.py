"""The manifests: valid by Kubernetes' schemas, and of one piece with each other and with the program."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from wattwise import Client
from wattwise_server.rpc.health import LIVENESS, READINESS
from wattwise_server.security.tokens import Role

from tests.credentials import Authority, issue
from tests.deploy.files import (
    BASE,
    EXAMPLE,
    containers,
    dockerfile,
    image_settings,
    of_kind,
    pods,
    resources,
    variables_of,
)
from tests.deploy.options import options_of
from tests.deploy.page import seen, showing
from tests.jobs import job_spec
from tests.live_server import LiveServer
from tests.ports import hold_port, port_of

OLDEST = "1.30"
FILES = ("ca.pem", "database", "database-owner", "server.pem", "server.key", "server.tokens", "web.pem", "web.key")


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
        "ConfigMap",
        "Deployment",
        "Deployment",
        "Job",
        "Namespace",
        "NetworkPolicy",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Secret",
        "Secret",
        "Secret",
        "Secret",
        "Service",
        "Service",
        "Service",
        "ServiceAccount",
    ]
    is_valid(found)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_makes_the_same(found: list[dict[str, Any]], tmp_path: Path) -> None:
    """Kustomize itself accepts the example, resolves the same resources and hashes names whose change is a rollout."""
    shutil.copytree(EXAMPLE.parent, tmp_path / "kubernetes")
    example = tmp_path / "kubernetes" / EXAMPLE.name
    (example / "secrets").mkdir()
    for name in FILES:
        (example / "secrets" / name).write_text("text")
    done = subprocess.run(["kubectl", "kustomize", example], capture_output=True, text=True, check=True, timeout=120)
    built = list(yaml.safe_load_all(done.stdout))
    is_valid(built)

    def names(them: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {
            (each["kind"], each["metadata"]["name"]) for each in them if each["kind"] not in ("ConfigMap", "Secret")
        }

    assert names(built) == names(found)
    assert {each["metadata"].get("namespace") for each in built} == {None, "wattwise"}
    assert [each["image"] for each in containers(built)] == [each["image"] for each in containers(found)]
    made = {each["metadata"]["name"] for kind in ("ConfigMap", "Secret") for each in of_kind(built, kind)}
    used = {source_of(volume) for pod in pods(built) for volume in pod["spec"]["volumes"]}
    assert made == used
    assert "wattwise-tokens" in made
    assert not {"wattwise-tls", "wattwise-web", "wattwise-web-tls"} & made
    (page,) = (each for each in containers(built) if each["name"] == "web")
    assert variables_of(page, built) == variables_of(component(found, "web")[1], found)


def source_of(volume: dict[str, Any]) -> str:
    """The name of the secret or of the settings that a volume has."""
    return str(volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"])


def component(found: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod template of a component, and its container."""
    (pod,) = (each for each in pods(found) if each["metadata"]["labels"]["app.kubernetes.io/component"] == name)
    (container,) = pod["spec"]["containers"]
    return pod, container


# What each pod may read. The page has neither a token nor a database, and only the migration owns the tables.
MOUNTED = {
    "server": {"wattwise-database", "wattwise-tls", "wattwise-tokens"},
    "migrate": {"wattwise-database-owner"},
    "web": {"wattwise-web", "wattwise-web-tls"},
}


@pytest.mark.parametrize("name", MOUNTED)
def test_what_is_mounted_is_used(found: list[dict[str, Any]], name: str) -> None:
    """Each volume has its part of the example's secrets and settings, and each file that a variable names is in one."""
    made = [each for kind in ("ConfigMap", "Secret") for each in of_kind(found, kind)]
    keys = {each["metadata"]["name"]: set(each["data"]) for each in made}
    assert len(keys) == len(made)
    pod, container = component(found, name)
    volumes = {volume["name"]: source_of(volume) for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    values = [value.removeprefix("@") for value in variables_of(container, found).values()]
    files = [Path(value) for value in values if value.startswith("/")]
    for file in files:
        assert file.name in keys[mounts[str(file.parent)]]
    assert {str(file.parent) for file in files} == set(mounts)
    assert set(mounts.values()) == MOUNTED[name]


def test_commands_and_variables_exist(found: list[dict[str, Any]]) -> None:
    """Each container runs a command of `wattwise` with variables that this command knows."""
    for container in containers(found):
        (command,) = container["args"]
        known = options_of(command)
        ours = {variable["name"] for variable in container["env"]} - {"NAMESPACE"}
        assert ours <= known


def test_probes_ask_for_what_is_answered(found: list[dict[str, Any]]) -> None:
    """The probes use the image's port without TLS; nothing but the process decides about a restart."""
    _, server = component(found, "server")
    port = int(image_settings()["WATTWISE_HEALTH_ADDRESS"].rpartition(":")[2])
    assert server["readinessProbe"]["grpc"] == {"port": port, "service": READINESS}
    assert server["livenessProbe"]["grpc"] == {"port": port, "service": LIVENESS}
    names = ("ADDRESS", "HEALTH_ADDRESS", "METRICS_ADDRESS")
    ports = {int(image_settings()[f"WATTWISE_{name}"].rpartition(":")[2]) for name in names}
    assert {each["containerPort"] for each in server["ports"]} == ports
    (exposed,) = (step.words for step in dockerfile()[-1] if step.name == "EXPOSE")
    _, page = component(found, "web")
    (shown,) = (each["containerPort"] for each in page["ports"])
    assert shown == int(image_settings()["WATTWISE_WEB_ADDRESS"].rpartition(":")[2])
    assert set(map(int, exposed)) == {*ports, shown}


def test_page_runs_with_the_variables_of_its_container(found: list[dict[str, Any]], tmp_path: Path) -> None:
    """On a server with TLS and tokens it answers its probes, and shows jobs to whom logs in at the public URL."""
    pod, container = component(found, "web")
    variables = variables_of(container, found)
    public_url = variables["WATTWISE_WEB_PUBLIC_URL"]
    authority = Authority(tmp_path)
    certificate, own = authority.issue("server"), authority.issue("web", str(urlsplit(public_url).hostname))
    mounted = {"ca.pem": authority.file, "tls.crt": own.cert, "tls.key": own.key}
    volumes = {volume["name"]: source_of(volume) for volume in pod["spec"]["volumes"]}
    settings = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
    settings |= image_settings() | variables | {"PATH": os.environ["PATH"]}
    for mount in container["volumeMounts"]:
        place = tmp_path / volumes[mount["name"]]
        place.mkdir()
        (made,) = (each for each in found if each["metadata"]["name"] == place.name and "data" in each)
        for key in made["data"].keys() & mounted.keys():
            shutil.copy(mounted[key], place / key)
        settings = {name: value.replace(mount["mountPath"], str(place)) for name, value in settings.items()}
    tokens = tmp_path / "tokens"
    admin, viewer = (issue(tokens, role, "") for role in (Role.ADMIN, Role.VIEWER))
    with LiveServer(tmp_path) as server, hold_port() as held:
        tls = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
        server.start(*tls, "--tokens", str(tokens))
        with Client(server.address, credentials=authority.believing(token=admin)) as client:
            client.register_job(job_spec(job_id="test-shown"))
        (port,) = container["ports"]
        address = settings["WATTWISE_WEB_ADDRESS"].replace(str(port["containerPort"]), str(port_of(held)))
        # Only here: the name of the servers in the cluster is compared with their certificate in test_secrets.
        settings |= {"WATTWISE_WEB_ADDRESS": address, "WATTWISE_SERVER": server.address}
        with showing(settings):
            for probe in (container["readinessProbe"]["httpGet"], container["livenessProbe"]["httpGet"]):
                assert probe["port"] == port["name"]
                # As the kubelet asks: without verifying, and with the address of the pod as the host.
                url = f"{probe['scheme'].lower()}://127.0.0.1:{port_of(held)}{probe['path']}"
                assert httpx.get(url, headers={"Host": "10.0.0.7:8080"}, verify=False).status_code == 200  # noqa: S501 - as probes
            assert "test-shown" in seen(f"127.0.0.1:{port_of(held)}", public_url, authority.file, viewer)


def test_rollout_loses_no_call(found: list[dict[str, Any]]) -> None:
    """A new server comes before an old one goes, which has time for its last calls."""
    deployment = deployment_of(found, "wattwise")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    (grace,) = (float(each["value"]) for each in server["env"] if each["name"] == "WATTWISE_GRACE_SECONDS")
    pause = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 5
    assert pod["terminationGracePeriodSeconds"] > grace + pause + 2
    (budget,) = of_kind(found, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]


def deployment_of(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The deployment with this name."""
    (deployment,) = (each for each in of_kind(found, "Deployment") if each["metadata"]["name"] == name)
    return deployment


def labels_of(found: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The labels of each component's pods."""
    every = [pod["metadata"]["labels"] for pod in pods(found)]
    return {labels["app.kubernetes.io/component"]: labels for labels in every}


def test_selectors_find_the_servers(found: list[dict[str, Any]]) -> None:
    """Services, the budget and the spread select the servers, and nothing else."""
    deployment = deployment_of(found, "wattwise")
    template = deployment["spec"]["template"]
    others = labels_of(found)
    labels = others.pop("server")
    ports = {each["name"]: each["containerPort"] for each in containers([deployment])[0]["ports"]}
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(found, "PodDisruptionBudget")]
    selectors += [each["labelSelector"]["matchLabels"] for each in template["spec"]["topologySpreadConstraints"]]
    for service in of_kind(found, "Service"):
        if service["metadata"]["name"] == "wattwise-web":
            continue
        assert service["spec"]["clusterIP"] == "None"
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
        selectors.append(service["spec"]["selector"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not [name for name, other in others.items() if selector.items() <= other.items()]


def test_selectors_find_the_page(found: list[dict[str, Any]]) -> None:
    """There is one page, since logins are in its memory; its service leads to it, inside the cluster, with TLS."""
    deployment = deployment_of(found, "wattwise-web")
    assert deployment["spec"]["replicas"] == 1
    (service,) = (each for each in of_kind(found, "Service") if each["metadata"]["name"] == "wattwise-web")
    assert "type" not in service["spec"]
    (port,), (own,) = service["spec"]["ports"], containers([deployment])[0]["ports"]
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (443, own["name"], "https")
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert [name for name, labels in labels_of(found).items() if selector.items() <= labels.items()] == ["web"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector of pods chooses one with these labels."""
    wishes = selector.get("matchExpressions", [])
    assert {wish["operator"] for wish in wishes} <= {"In"}
    chosen = all(labels.get(wish["key"]) in wish["values"] for wish in wishes)
    return chosen and selector["matchLabels"].items() <= labels.items()


def ports_in(rules: list[dict[str, Any]]) -> set[int]:
    """The ports that rules of a policy allow."""
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_network_admits_who_needs_it(found: list[dict[str, Any]]) -> None:
    """Every pod has one policy: the page reaches the servers and no database, and only visitors reach the page."""
    policies = {
        name: next(
            each["spec"] for each in of_kind(found, "NetworkPolicy") if selects(each["spec"]["podSelector"], own)
        )
        for name, own in labels_of(found).items()
    }
    assert len(of_kind(found, "NetworkPolicy")) == 2
    assert policies["server"] == policies["migrate"] != policies["web"]
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    server, page = policies["server"], policies["web"]
    ports = {name: {each["containerPort"] for each in component(found, name)[1]["ports"]} for name in ("server", "web")}
    assert ports_in(server["ingress"]) == ports["server"] - {50052}, "probes come from the node"
    assert ports_in(server["egress"]) == {53, 5432}
    assert ports_in(page["ingress"]) == ports["web"]
    assert ports_in(page["egress"]) == {53, 50051}
    (calls,) = (rule["from"] for rule in server["ingress"] if ports_in([rule]) == {50051})
    (asked,) = (rule["to"] for rule in page["egress"] if ports_in([rule]) == {50051})
    for peers, expected in ((calls, "web"), (asked, "server")):
        (own,) = (peer["podSelector"] for peer in peers if "podSelector" in peer)
        assert [name for name, labels in labels_of(found).items() if selects(own, labels)] == [expected]
    assert {"namespaceSelector": {"matchLabels": {"wattwise/trainers": "true"}}} in calls
    assert [rule["from"] for rule in page["ingress"]] == [
        [{"namespaceSelector": {"matchLabels": {"wattwise/visitors": "true"}}}]
    ]


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
