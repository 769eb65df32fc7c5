"""The manifests against Kubernetes' own schema, and what they promise about probes, writable places and the end."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.config.files import CONFIG, LONGEST_STOP_S, ROOT, documents

MANIFESTS = {one["kind"]: one for one in documents("kubernetes/gateway.yaml")}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VERSIONS = ("1.28", "1.37")
"""The oldest and the newest that the schema is asked of."""


@pytest.mark.skipif(
    not importlib.util.find_spec("kubernetes_validate"),
    reason="kubernetes-validate is not installed (`pip install .[kubernetes]`)",
)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", MANIFESTS)
def test_schema(kind: str, version: str) -> None:
    """Strictly: a field that does not exist is an error."""
    from kubernetes_validate import ValidationError, validate

    validate(MANIFESTS[kind], version, strict=True)
    with pytest.raises(ValidationError):
        validate(MANIFESTS[kind] | {"spec": {**MANIFESTS[kind]["spec"], "replica": 1}}, version, strict=True)


def test_probes() -> None:
    """Loading is healthy but not ready, so only the startup and readiness probes ask /ready."""
    assert (
        POD["enableServiceLinks"] is False
    )  # a service named t5gemma-x would be told as T5GEMMA_X_... (N13)
    asked = {
        kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
    }
    assert asked == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    assert all(isinstance(entry.get("value", ""), str) for entry in CONTAINER["env"])


def test_selectors() -> None:
    template = MANIFESTS["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    service = MANIFESTS["Service"]["spec"]
    assert service["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    assert service["selector"].items() <= labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(
        CONTAINER["ports"][0]["containerPort"]
    )


def test_end() -> None:
    """The pod is given the time for preStop, in which it is taken out of the Service, and the longest end."""
    (_, pause) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    grace = next(float(e["value"]) for e in CONTAINER["env"] if e["name"] == "T5GEMMA_SHUTDOWN_GRACE_S")
    assert POD["terminationGracePeriodSeconds"] > float(pause) + LONGEST_STOP_S and grace == 30


def test_a_budget_that_lets_nodes_be_emptied() -> None:
    """A minimum of one would hold a node for ever where there is one replica."""
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_writable_places() -> None:
    """The root is read-only and the user the image's; the folder of its caches, /tmp and /dev/shm are volumes."""
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] and POD["securityContext"]["runAsNonRoot"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"USER {POD['securityContext']['runAsUser']}\n" in dockerfile
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts == {"cache": "/home/t5gemma2/.cache", "tmp": "/tmp", "shm": "/dev/shm"}
    assert mounts.keys() == {volume["name"] for volume in POD["volumes"]}
    (claim,) = [v["persistentVolumeClaim"]["claimName"] for v in POD["volumes"] if v["name"] == "cache"]
    assert claim == MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]


def test_no_manifest_is_forgotten() -> None:
    assert [path.name for path in (CONFIG / "kubernetes").iterdir()] == ["gateway.yaml"]
