from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.placement import PlacedPath, Placement
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.server.app.settings.environment import load_settings, variables_of
from polyrec.server.app.settings.settings import Settings, SettingsError
from polyrec.server.http.connection.limits import HANDSHAKES_SHARE
from polyrec.server.prediction_log.settings import PredictionLogSettings

PLAN = single_path_plan(Path("table"), "table", "onnx")


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environ = {"POLYREC_PORT": "9000", "POLYREC_HOST": "0.0.0.0", "PATH": "/bin"}
    settings = load_settings({"bundle": "b", "port": 7000, "host": None}, environ)
    assert (settings.port, settings.host, settings.lane) == (7000, "0.0.0.0", "auto")


def test_settings_win_over_the_plan_and_leave_the_rest_of_it() -> None:
    bent = load_settings(
        {"bundle": "b"}, {"POLYREC_MAX_BATCH_ROWS": "64", "POLYREC_DEFAULT_BUDGET_MS": "7.5"}
    ).apply_to(PLAN)
    assert bent.limits.max_batch_rows == 64
    assert bent.default_budget_ms == 7.5
    assert bent.limits.max_body_bytes == PLAN.limits.max_body_bytes
    assert bent.paths == PLAN.paths


def test_open_rights_are_a_list_with_commas() -> None:
    settings = load_settings({"bundle": "b"}, {"POLYREC_OPEN_RIGHTS": "priority,quality"})
    assert settings.open_rights == ("priority", "quality")
    assert load_settings({"bundle": "b", "open_rights": ""}, {}).open_rights == ()


def test_a_cap_on_budgets_is_not_below_the_default_budget() -> None:
    assert load_settings({"bundle": "b", "max_budget_ms": 100}, {}).apply_to(PLAN).limits.max_budget_ms == 100
    with pytest.raises(SettingsError, match="max_budget_ms 99 is below default_budget_ms 100"):
        load_settings({"bundle": "b", "max_budget_ms": 99}, {}).apply_to(PLAN)


def test_a_bundle_on_the_command_line_replaces_a_plan_in_the_environment() -> None:
    settings = load_settings({"bundle": "b"}, {"POLYREC_PLAN": "plan.json"})
    assert settings.bundle == Path("b")
    assert settings.plan is None


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        (
            {"bundle": "b"},
            {"POLYREC_PROT": "1"},
            "unknown environment variable POLYREC_PROT; did you mean POLYREC_PORT?",
        ),
        (
            {"bundle": "b", "model_name": "stats"},
            {},
            "--model-name: 'stats' is no name of a model: use letters, digits",
        ),
        ({"bundle": "b", "access_log": "2"}, {}, "--access-log: Input should be less than or equal to 1"),
        ({"bundle": "b"}, {"POLYREC_LOG_FORMAT": "yaml"}, "POLYREC_LOG_FORMAT: Input should be 'text' or"),
        (
            {"bundle": "b"},
            {"POLYREC_TEMPERATURE": "1"},
            "unknown environment variable POLYREC_TEMPERATURE; known: POLYREC_BUNDLE",
        ),
        ({"bundle": "b"}, {"POLYREC_PORT": "tcp://nowhere:8000"}, "POLYREC_PORT: "),
        ({"bundle": "b"}, {"POLYREC_PORT": "x"}, "POLYREC_PORT: "),
        ({"bundle": "b", "port": 70000}, {}, "--port: "),
        (
            {"bundle": "b", "port": 65534, "processes": 2},
            {},
            "port: its 2 processes also need ports 65535 to 65536, and the last is 65535",
        ),
        (
            {"bundle": "b", "port": 8000, "processes": 2, "grpc_port": 8001},
            {},
            "grpc_port: HTTP and the processes' own ports are 8000 to 8002; choose another",
        ),
        ({"bundle": "b", "max_batch_rows": 0}, {}, "--max-batch-rows: "),
        ({"bundle": "b", "open_rights": "quality,admin"}, {}, "--open-rights.1: "),
        ({"bundle": "b"}, {"POLYREC_MAX_BATCH_ROWS": "1000000000"}, "POLYREC_MAX_BATCH_ROWS: "),
        ({"bundle": "b"}, {"POLYREC_LOG_LEVEL": "loud"}, "POLYREC_LOG_LEVEL: "),
        ({"bundle": "b", "default_budget_ms": float("nan")}, {}, "--default-budget-ms: "),
        ({}, {}, "give either --bundle DIR or --plan FILE"),
        ({"bundle": "b", "plan": "p"}, {}, "--models DIR; not --bundle and --plan"),
        ({"plans": ("a=p", "b")}, {}, "--plan: 'b' is not NAME=FILE"),
        ({"plans": ("a=p", "a=q")}, {}, "model 'a' is given twice"),
        ({"plans": ("stats=p",)}, {}, "and not 'stats'"),
        ({"models": "m", "plan": "p"}, {}, "--models DIR; not --plan and --models"),
        ({"models": "m", "plans": ("a=p",)}, {}, "not --plan NAME=FILE and --models"),
        ({"models": "m", "model_name": "a"}, {}, "model_name is for a single model; there are several"),
        (
            {"models": "m", "model_share": ("a=.5", "b=.6")},
            {},
            "shares of all models add up to more than 1",
        ),
        ({"models": "m", "model_weight": ("a=2x",)}, {}, "--model-weight: 'a=2x' is not NAME=NUMBER"),
        ({"models": "m"}, {"POLYREC_MODEL_SHARE": "a=.1,a=.2"}, "model 'a' is given twice"),
        ({"bundle": "b", "model_share": ("a=.5",)}, {}, "are for several models; there is one"),
        ({"bundle": "b", "live_quality": "measure"}, {}, "--live-quality needs --prediction-log FOLDER"),
        ({"plan": "p", "device": "cpu"}, {}, "the plan names paths and lanes; leave out device"),
    ],
)
def test_a_bad_setting_gives_one_line_that_names_it(
    flags: dict[str, object], environ: dict[str, str], says: str
) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(flags, environ)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_limits_that_contradict_the_plan_are_rejected() -> None:
    with pytest.raises(SettingsError, match="could never be queued"):
        Settings(bundle=Path("b"), max_queued_rows=1).apply_to(PLAN)


def test_tier_settings_apply_where_a_plan_has_a_placement_and_rejected_where_it_has_none() -> None:
    drift = {"drift_every": 4, "drift_memory": 1e6}
    given = load_settings({"plan": "p.json", "tier_directory": "/disk"} | drift, {"POLYREC_DRIFT_S": "600"})
    with pytest.raises(SettingsError, match=r"tier_directory and drift_\.\.\. need updates, or a plan with"):
        given.apply_to(PLAN)
    updatable = load_settings({"plan": "p.json", "tier_directory": "/disk", "updates": True}, {}).apply_to(
        PLAN
    )
    assert updatable.placement == Placement(paths=(), directory=Path("/disk"))
    placement = Placement(paths=(PlacedPath(path="table@cpu", tables={"t": TierCuts(host=1, disk=2)}),))
    bent = given.apply_to(PLAN.model_copy(update={"placement": placement})).placement
    assert bent is not None
    assert (bent.directory, bent.drift_s, bent.prefetch) == (Path("/disk"), 600, True)
    assert (bent.drift_every, bent.drift_memory) == (4, 1e6)
    assert bent.paths == placement.paths
    with pytest.raises(SettingsError, match="--drift-s"):
        load_settings({"plan": "p.json", "drift_s": 0}, {})


def test_a_stores_password_comes_from_the_environment_or_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    placed = PlacedPath(path="table@cpu", tables={"t": TierCuts(host=1, remote=2)})
    placement = Placement(paths=(placed,), remote=RemoteStore(url="rediss://rows@store", ca_file="ca.pem"))
    save_plan(PLAN.model_copy(update={"placement": placement}), tmp_path / "plan.json")
    named = load_plan(tmp_path / "plan.json")
    flags = {"plan": tmp_path / "plan.json"}
    settings = load_settings(flags, {"POLYREC_STORE_PASSWORD": "s3cret"})
    bent = settings.apply_to(named)
    store = bent.placement.remote if bent.placement else None
    assert store is not None
    assert store.password is not None
    assert store.password.get_secret_value() == "s3cret"
    assert store.ca_file == tmp_path / "ca.pem"
    assert "s3cret" not in f"{settings!r} {bent!r} {bent.model_dump_json()}"
    save_plan(bent, tmp_path / "saved.json")
    assert load_plan(tmp_path / "saved.json").placement is not None
    by_file = load_settings(flags | {"store_password_file": "secret"}, {}).apply_to(named).placement
    assert by_file is not None
    assert by_file.remote is not None
    assert by_file.remote.password_file == Path("secret")
    assert load_settings({"bundle": "b"}, {"POLYREC_STORE_PASSWORD": "s3cret"}).apply_to(PLAN) == PLAN
    with pytest.raises(SettingsError, match="leave the password out"):
        load_settings(flags | {"store_url": "redis://rows:s3cret@store"}, {})


def test_a_prediction_log_has_the_settings_that_are_given_and_its_own_defaults(tmp_path: Path) -> None:
    flags = {"bundle": "b", "prediction_log_leave_out": "city,price", "prediction_log_max_bytes": 2**20}
    settings = load_settings(flags, {"POLYREC_PREDICTION_LOG_FLUSH_S": "5"})
    assert settings.prediction_log_settings(tmp_path) == PredictionLogSettings(
        folder=tmp_path, leave_out=("city", "price"), max_bytes=2**20, flush_s=5
    )
    with pytest.raises(SettingsError, match="--prediction-log-flush-s"):
        load_settings({"bundle": "b", "prediction_log_flush_s": 3601}, {})


def test_settings_written_as_variables_are_read_as_they_were(tmp_path: Path) -> None:
    given = {
        "bundle": tmp_path,
        "port": 0,
        "precision": "int8",
        "open_rights": "priority,quality",
        "admin_token": "a token of sixteen and more",
        "store_password": "a secret, with = and spaces",
        "drain_grace_s": 0.25,
        "processes": 3,
        "docs": False,
    }
    settings = load_settings(given, {})
    assert load_settings({}, variables_of(settings)) == settings


def test_several_models_come_from_flags_a_variable_or_a_folder(tmp_path: Path) -> None:
    files = {"b": Path("x/p.json"), "a": Path("q=1.json")}
    settings = load_settings({"plans": ("b=x/p.json", "a=q=1.json")}, {"POLYREC_BUNDLE": "other"})
    assert list(settings.model_files(strict=True).by_name.items()) == list(files.items())
    assert load_settings({}, variables_of(settings)) == settings
    folder = load_settings({}, {"POLYREC_MODELS": str(tmp_path)})
    with pytest.raises(SettingsError, match="no model is there"):
        folder.model_files(strict=True)
    (tmp_path / "table").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "ads.json").touch()
    assert folder.model_files().by_name == {"ads": tmp_path / "ads.json", "table": tmp_path / "table"}
    (tmp_path / "table.json").touch()
    with pytest.raises(SettingsError, match="model 'table' is given twice"):
        folder.model_files(strict=True)
    assert load_settings({"bundle": "b"}, {}).model_files().by_name == {}


def test_shares_and_weights_are_by_model_and_of_models_that_are_served() -> None:
    settings = load_settings({"models": "m", "model_share": ("a=.3",)}, {"POLYREC_MODEL_WEIGHT": "a=2,b=3"})
    assert settings.share_of("a") == ModelShare(2.0, 0.3)
    assert settings.share_of("b") == ModelShare(3.0, None)
    assert settings.share_of("c") == ModelShare()
    assert load_settings({}, variables_of(settings)) == settings
    settings.check_shares(("a", "b"))
    with pytest.raises(SettingsError, match="no model 'b' for its share or weight; there are 'a'"):
        settings.check_shares(("a",))


def test_http_and_grpc_share_the_descriptors() -> None:
    """Each took all, so that connections to one port could leave the other, and lanes, none."""
    alone = load_settings({"bundle": "b"}, {}).connection_limits().connections
    both = load_settings({"bundle": "b", "grpc_port": 0}, {}).connection_limits().connections
    assert alone - 1 <= 2 * both <= alone
    given = load_settings({"bundle": "b", "grpc_port": 0, "max_connections": 100}, {})
    assert given.connection_limits().connections == 100


@pytest.mark.parametrize("connections", [None, 100])
def test_handshakes_have_descriptors_beside_the_connections(connections: int | None) -> None:
    pair = {"tls_cert": "cert", "tls_key": "key", "max_connections": connections}
    plain = load_settings({"bundle": "b"}, {}).connection_limits().connections
    limits = load_settings({"bundle": "b"} | pair, {}).connection_limits()
    if connections is None:
        assert 0.9 * plain < limits.connections * (1 + HANDSHAKES_SHARE) <= plain
    else:
        assert limits.connections == connections
