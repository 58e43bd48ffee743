"""Checks what the Helm chart renders: Kubernetes takes it, `polyrec serve` its arguments, and drains fit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate
import pytest
import yaml

from polyrec.cli.main import build_parser

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "polyrec"
GOPATH = Path("/usr/share/gocode")
KUBERNETES = "1.33"

Manifests: TypeAlias = dict[str, dict[str, Any]]
"""Rendered manifests by kind."""

VOLUME: dict[str, Any] = {"model": {"volume": {"persistentVolumeClaim": {"claimName": "bundles"}}}}
ALL: dict[str, Any] = {
    "model": {"initContainer": {"image": "tool:1", "command": ["fetch", "/bundle"], "env": []}},
    "serve": {
        "plan": "plan.json",
        "modelName": "clicks",
        "defaultBudgetMs": 12,
        "extraArgs": ["--access-log=0.1", "--prediction-log=/log"],
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
        "envFrom": [{"secretRef": {"name": "aws"}}],
    },
    "extraVolumes": [{"name": "log", "persistentVolumeClaim": {"claimName": "log"}}],
    "extraVolumeMounts": [{"name": "log", "mountPath": "/log"}],
    "serviceAccountName": "models",
    "grpc": {"enabled": True},
    "adminToken": {"secretName": "admin"},
    "tokens": {"secretName": "tokens"},
    "remoteStorePassword": {"secretName": "store"},
    "tls": {"secretName": "certificate"},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "runbook": "https://wiki/runbook"},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled renderer."""
    go = shutil.which("go")
    if go is None or not (GOPATH / "src/github.com/Masterminds/sprig").exists():
        pytest.skip("no Go with Sprig (Debian: golang-go golang-github-masterminds-sprig-dev)")
    folder = tmp_path_factory.mktemp("render")
    built = folder / "render"
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(GOPATH), "GOCACHE": str(folder / "cache")}
    source = Path(__file__).with_name("helm_template.go")
    subprocess.run([go, "build", "-o", built, source], env=environment, check=True, timeout=300)
    return built


def run(
    program: Path, values: dict[str, Any], namespace: str = "shop", release: str = "rec"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, CHART, release, namespace],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def render(program: Path, values: dict[str, Any], namespace: str = "shop", release: str = "rec") -> Manifests:
    """Renders the chart with these values over its own."""
    told = run(program, values, namespace, release)
    assert told.returncode == 0, told.stderr
    sources = told.stdout.split("---\n")[1:]
    parsed = [yaml.safe_load(text) for text in sources if not text.startswith("# Source: NOTES.txt")]
    return {manifest["kind"]: manifest for manifest in parsed if manifest}


@pytest.fixture(params=["volume", "all"])
def manifests(program: Path, request: pytest.FixtureRequest) -> Manifests:
    return render(program, VOLUME if request.param == "volume" else ALL)


def container(manifests: Manifests) -> dict[str, Any]:
    found: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_kubernetes_accepts_what_is_rendered(manifests: Manifests) -> None:
    for kind, manifest in manifests.items():
        if not manifest["apiVersion"].startswith("monitoring.coreos.com"):
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        assert manifest["metadata"]["name"] == "rec-polyrec", kind


@pytest.mark.parametrize("name", ["123", "1e3", "true", "null"])
def test_names_that_yaml_would_read_as_something_else_stay_names(program: Path, name: str) -> None:
    values = ALL | {"adminToken": {"secretName": name, "key": name}, "tokens": {"secretName": name}}
    values |= {"tls": {"secretName": name}, "serviceAccountName": name, "priorityClassName": name}
    rendered = render(program, values, release=name)
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"):
        kubernetes_validate.validate(rendered[kind], KUBERNETES, strict=True)
        assert rendered[kind]["metadata"]["labels"]["app.kubernetes.io/instance"] == name


def test_arguments_are_as_in_the_values(program: Path) -> None:
    limits = ["--prediction-log-max-bytes", 50_000_000_000, "--access-log", 0.01]
    serve = {"plan": "day 1: #2.json", "extraArgs": limits}
    given = build_parser().parse_args(container(render(program, VOLUME | {"serve": serve}))["args"])
    assert given.plan == ["/bundle/day 1: #2.json"]
    assert (given.prediction_log_max_bytes, given.access_log) == (50_000_000_000, 0.01)


def test_only_requested_objects_are_rendered(program: Path) -> None:
    assert set(render(program, VOLUME)) == {"Deployment", "Service", "PodDisruptionBudget"}
    more = {"HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"}
    assert set(render(program, ALL)) == {"Deployment", "Service", "PodDisruptionBudget"} | more


def test_the_command_line_takes_the_arguments(manifests: Manifests) -> None:
    given = build_parser().parse_args(container(manifests)["args"])
    assert given.port == 8000


def test_a_pod_is_killed_only_after_its_drain(manifests: Manifests) -> None:
    given = build_parser().parse_args(container(manifests)["args"])
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > given.drain_grace_s + given.drain_timeout_s
    # a load balancer has seen two failed probes before the server stops to answer
    probe = container(manifests)["readinessProbe"]
    assert given.drain_grace_s > probe["periodSeconds"] * (probe["failureThreshold"] + 1)


def test_containers_have_no_rights(manifests: Manifests) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in [*pod["containers"], *pod.get("initContainers", [])]:
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_mounted_volume_exists_and_every_volume_is_mounted(
    manifests: Manifests,
) -> None:
    mounted = {mount["name"] for mount in container(manifests)["volumeMounts"]}
    assert mounted == {v["name"] for v in manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]}


def test_selectors_find_the_pods(manifests: Manifests) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    chosen = [manifests["Service"]["spec"]["selector"]]
    chosen += [manifests[k]["spec"]["selector"]["matchLabels"] for k in ("Deployment", "PodDisruptionBudget")]
    assert all(selector.items() <= labels for selector in chosen)


def test_variables_are_the_admin_token_and_those_of_the_values(program: Path) -> None:
    def names(values: dict[str, Any]) -> list[str]:
        return [variable["name"] for variable in container(render(program, values)).get("env", [])]

    token = {"adminToken": {"secretName": "admin"}}
    assert names(VOLUME) == []
    assert names(VOLUME | token) == ["POLYREC_ADMIN_TOKEN"]
    assert names(ALL) == ["POLYREC_ADMIN_TOKEN", "OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert names(VOLUME | {"serve": {"env": ALL["serve"]["env"]}}) == ["OTEL_EXPORTER_OTLP_ENDPOINT"]


@pytest.mark.parametrize("namespace", ["shop", "test", "1"])
@pytest.mark.parametrize("name", ["", "clicks", "123"])
def test_installations_are_told_apart_by_their_model(program: Path, namespace: str, name: str) -> None:
    values = VOLUME | {"serviceMonitor": {"enabled": True}, "serve": {"modelName": name}}
    (endpoint,) = render(program, values, namespace)["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["honorLabels"]
    labels = {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]}
    installed = f"{namespace}/{name or 'rec-polyrec'}"
    assert labels == {"job": "polyrec", "model": installed}
    # a server with several models names them itself
    (renamed,) = endpoint["metricRelabelings"]
    assert renamed["sourceLabels"] == ["model"]
    assert renamed["targetLabel"] == "model"
    scraped = {"hotels": f"{namespace}/hotels", installed: installed, "": ""}
    for model, seen in scraped.items():
        found = re.fullmatch(renamed["regex"], model)
        assert (found.expand(renamed["replacement"].replace("$1", r"\1")) if found else model) == seen


def test_prometheus_takes_the_rules(program: Path, tmp_path: Path) -> None:
    rule = render(program, ALL)["PrometheusRule"]
    recorded = {each.get("record") for group in rule["spec"]["groups"] for each in group["rules"]}
    scaled = render(program, ALL)["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert scaled in recorded
    assert "$externalLabels" not in str(rule)
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], check=True, capture_output=True)


def test_a_pod_with_dead_lanes_has_no_demand(program: Path, tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(render(program, ALL)["PrometheusRule"]["spec"]))
    rows = {"arrival": {"well": 50, "dead": 0, "asked": 50}, "capacity": {"well": 100, "dead": 0, "asked": 0}}
    series = [
        {"series": f'polyrec_{name}_rows_per_second{{pod="{pod}"}}', "values": str(value)}
        for name, pods in rows.items()
        for pod, value in pods.items()
    ]
    expected = {"labels": 'polyrec_demand_ratio{pod="well"}', "value": 0.5}
    asked = {"expr": "polyrec_demand_ratio", "eval_time": "0", "exp_samples": [expected]}
    test = {
        "rule_files": ["rules.yml"],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    told = subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def refused(values: dict[str, Any]) -> list[str]:
    """The paths of values that the chart's schema refuses."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return [error.json_path for error in jsonschema.Draft7Validator(schema).iter_errors(values)]


def test_the_schema_has_every_value() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for values in (defaults, VOLUME, ALL, {"global": {"any": 1}}):
        assert refused(values) == []
    used = re.findall(r"\.Values((?:\.\w+)+)", "".join(f.read_text() for f in CHART.glob("templates/*")))
    for path in used:
        node: Any = defaults
        for key in path.strip(".").split("."):
            assert key in node, path
            node = node[key]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"sharedMemory": "1Gi"}, "$"),
        ({"serve": {"plann": "x"}}, "$.serve"),
        ({"model": {"initContainer": {"imag": "tool:1"}}}, "$.model.initContainer"),
        ({"adminToken": "mysecret"}, "$.adminToken"),
        ({"serve": {"modelName": 123}}, "$.serve.modelName"),
        ({"drain": {"graceSeconds": 0.5}}, "$.drain.graceSeconds"),
        ({"serve": {"extraArgs": ["--access-log", 1, "--processes", 2]}}, "$.serve.extraArgs[2]"),
        ({"serve": {"extraArgs": ["--port=9000"]}}, "$.serve.extraArgs[0]"),
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_chart_does_not_support(values: dict[str, Any], where: str) -> None:
    assert refused(values) == [where]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "exactly one of model.volume and model.initContainer"),
        (
            {"model": {**VOLUME["model"], **ALL["model"]}},
            "exactly one of model.volume and model.initContainer",
        ),
        (VOLUME | {"autoscaling": {"enabled": True}}, "autoscaling needs prometheusRule.enabled"),
    ],
    ids=["no model", "two models", "no demand"],
)
def test_chart_rejects_values_that_cannot_work(program: Path, values: dict[str, Any], reason: str) -> None:
    told = run(program, values)
    assert told.returncode != 0
    assert reason in told.stderr
