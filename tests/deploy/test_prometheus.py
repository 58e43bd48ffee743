"""Checks the metrics page as Prometheus reads it, that alerts fire, and that each has a runbook entry."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrec.server.metrics.error_budget import SLO_MISSES, SLO_SHARE
from polyrec.server.metrics.metrics import OUTCOMES, Metrics

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
ALERTS = [rule for group in RULES for rule in group["rules"] if "alert" in rule]
RATIOS = [rule for group in RULES for rule in group["rules"] if "slo_errors" in rule.get("record", "")]


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    told = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=FOLDER)
    assert told.returncode == 0, told.stdout + told.stderr


def test_configuration_and_rules_can_be_read() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")


def test_several_models_of_a_server_keep_their_label() -> None:
    """Else the target's label would replace it, and alerts would be of all its models together."""
    (scraped,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["honor_labels"]


def test_alerts_fire_when_they_should_and_are_silent_otherwise() -> None:
    promtool("test", "rules", "rules_test.yml", "rules_slow_test.yml")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_every_alert_has_its_case_and_its_page(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    cases = (FOLDER / "rules_test.yml").read_text()
    assert f'alertname="{name}"' in cases
    assert f"\n## {name}\n" in (ROOT / "docs" / "runbook.md").read_text()
    assert alert["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbook }}}}#{name.lower()}"
    assert alert["labels"]["severity"] in ("page", "ticket")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_every_alert_about_a_model_names_it(alert: dict[str, Any]) -> None:
    # a process and its event loop are of all models of a server
    if alert["alert"] not in ("PolyrecDown", "PolyrecLoopStalls"):
        assert "{{ with $labels.model }}" in alert["annotations"]["summary"]


def test_rules_count_what_the_server_counts_as_broken() -> None:
    for rule in RATIOS:
        broken, not_counted = re.findall(r'outcome!?=?~"([^"]+)"', rule["expr"])
        assert broken.split("|") == list(SLO_MISSES)
        assert set(not_counted.split("|")) == set(OUTCOMES) - {"ok", *SLO_MISSES}


def test_burn_rates_are_of_the_promise() -> None:
    burning = [alert for alert in ALERTS if "slo_errors" in alert["expr"]]
    allowed = {a["alert"]: re.findall(r"> ([\d.]+) \* ([\d.]+)", a["expr"]) for a in burning}
    windows = {a["alert"]: re.findall(r"rate(\w+)", a["expr"]) for a in burning}
    for factors in allowed.values():
        assert [float(share) for _, share in factors] == pytest.approx([1 - SLO_SHARE] * 2)
    assert {name: float(factors[0][0]) for name, factors in allowed.items()} == {
        "PolyrecSloBurnsFast": 14.4,
        "PolyrecSloBurns": 6,
        "PolyrecSloErodes": 1,
    }
    assert windows == {
        "PolyrecSloBurnsFast": ["1h", "5m"],
        "PolyrecSloBurns": ["6h", "30m"],
        "PolyrecSloErodes": ["3d", "6h"],
    }


def test_rules_name_metrics_that_exist() -> None:
    exposed = {family.exposed for family in Metrics().families}
    for group in RULES:
        for rule in group["rules"]:
            for name in re.findall(r"\bpolyrec_\w+", rule["expr"]):
                assert name in exposed or name.removesuffix("_bucket") in exposed, name


def test_compose_opens_ports_of_this_machine_only_and_mounts_what_is_there() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    built = {service["image"] for service in services.values() if "build" in service}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        if service["image"] not in built:
            pinned = r":v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}$"
            assert re.search(pinned, service["image"]), f"{name}: a version and a digest"
        for mount in service["volumes"]:
            source = mount.split(":")[0] if isinstance(mount, str) else ""
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), source
