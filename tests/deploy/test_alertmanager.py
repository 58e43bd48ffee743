"""Checks Alertmanager's configuration: receivers by severity, and which alerts silence which."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
ALERTS = [rule for group in RULES for rule in group["rules"] if "alert" in rule]


def amtool(*arguments: str) -> str:
    program = shutil.which("amtool")
    if program is None:
        pytest.skip("no amtool on this machine (Debian: apt-get install prometheus-alertmanager)")
    told = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout.strip()


def test_configuration_can_be_read() -> None:
    assert "SUCCESS" in amtool("check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml"))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_every_alert_goes_to_the_receiver_of_its_severity(alert: dict[str, Any]) -> None:
    severity = alert["labels"]["severity"]
    labels = (f"alertname={alert['alert']}", f"severity={severity}")
    config = f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}"
    assert amtool("config", "routes", "test", config, *labels) == severity


def test_only_alerts_that_exist_silence_others() -> None:
    known = {alert["alert"] for alert in ALERTS}
    for rule in CONFIG["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            named = re.fullmatch(r'alertname=~?"([\w|]+)"', matcher)
            assert named
            assert set(named[1].split("|")) <= known
        assert {"job", "model"} <= set(rule["equal"])


def test_compose_has_prometheus_tell_the_alertmanager_that_it_starts() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    (targets,) = yaml.safe_load((DEPLOY / "prometheus" / "alertmanagers.compose.yml").read_text())
    (port,) = services["alertmanager"]["ports"]
    assert targets["targets"] == [f"alertmanager:{port.rpartition(':')[2]}"]
    mounts = services["prometheus"]["volumes"]
    file = "./prometheus/alertmanagers.compose.yml:/etc/prometheus/alertmanagers.yml:ro"
    assert file in mounts
