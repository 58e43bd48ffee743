"""Defines the settings of one server, and applies those that replace a plan's.

Each setting is a flag and a POLYREC_ variable (server/app/settings/environment.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import ModelUrl, OptionalModelPlace
from polyrec.models.files import Strict, one_line
from polyrec.models.runtimes.registry import registered
from polyrec.models.tiers.remote.login import Login
from polyrec.models.tiers.tier_settings import StoreUrl
from polyrec.planner.plan import BudgetMs, Plan, Policy, Rows, TabledRows
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.server.access.tokens import OpenRight
from polyrec.server.app.logs import LogFormat
from polyrec.server.errors import shortened
from polyrec.server.http.connection.limits import ConnectionLimits, max_connections, open_descriptors
from polyrec.server.live_quality.settings import (
    MAX_BOUND,
    MAX_EVERY_S,
    MAX_SPAN_S,
    LiveQualitySettings,
    Mode,
    Priority,
)
from polyrec.server.prediction_log.settings import (
    FlushSeconds,
    KeptHours,
    LogBytes,
    LogShare,
    PredictionLogSettings,
    Unlabeled,
    WindowSeconds,
)
from polyrec.server.repository.settings import (
    ModelFiles,
    files_of,
    models_in,
    named_files,
    named_numbers,
    numbers_of,
    valid_name,
)

PREDICTION_LOG = "prediction_log_"
LOG_SETTINGS = tuple(name for name in PredictionLogSettings.model_fields if name != "folder")
SERVED = ("bundle", "plan", "plans", "models")
"""Settings that select what to serve."""

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SettingsError(PolyrecError):
    """A flag or environment variable is unknown or out of range."""


def _listed(value: object) -> object:
    """Splits `a,b` from a flag or variable into a tuple."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


def _auto_or_registered(name: str) -> str:
    return name if name == "auto" else registered(name)


def _prefixes(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(ModelUrl(prefix)) for prefix in given)


def _default_cache() -> Path:
    """Returns the default folder for fetched models. Raises SettingsError if there is no home folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache_home) if cache_home else Path.home() / ".cache") / "polyrec" / "models"
    except RuntimeError:
        raise SettingsError("there is no home folder for fetched models; give --model-cache DIR") from None


class Settings(Strict):
    """Settings of one server.

    bundle, plan, plans, models: what to serve; exactly one of them. plans: several models, each NAME=FILE, a
        plan or the folder of a bundle; the first is the default. models: a folder of such files, NAME.json or
        NAME, in the order of their names (docs/several-models.md). bundle and plans may be URLs
        (docs/models-by-url.md).
    model_urls, model_cache, model_cache_bytes: prefixes of the URLs that admin calls may name; folder of
        fetched bundles, None for one in the user's cache folder; most bytes there.
    model_share, model_weight: of several models, each NAME=NUMBER: the guaranteed share of the lanes' time,
        and the weight of the model's information for the rest of it (docs/several-models.md).
    model_name: the name for clients of a single model; None: the bundle's.
    runtime, device, precision, width, lanes, lane: only with a bundle (a plan names them for each path);
        `auto` is the best on this machine. width: one of nested widths; None: the widest. lanes, lane: number
        and kind of executors (docs/lanes.md); `auto` is inline for a CPU, a thread for any other device,
        processes if there are several.
    policy: replaces the plan's routing policy.
    admin_token: token that POST /v1/admin/... requires as `Authorization: Bearer`; None: no administration.
    tokens: file of the clients that may request predictions (server/access/tokens.py); None: all clients may.
    open_rights: rights of all clients: `priority`, `quality`, or both separated by a comma.
    tls_cert, tls_key: PEM files of the certificate chain and its key; both or none.
    processes: number of server processes that share the port (server/app/processes.py); each has a port of
        its own behind it, port + 1 and so on (any free ones with port 0).
    grpc_port: port of the gRPC server, 0 for a free one, which all processes share; None: there is none.
    drain_grace_s: seconds after SIGTERM in which the server still serves while /readyz is 503.
    drain_timeout_s: seconds after that in which requests in progress may finish.
    tier_directory, drift_s, drift_every, drift_memory: only with `updates`, or a plan with a placement, in
        place of its own: folder of the disk tiers' files; seconds between reorderings of rows by observed
        accesses; of how many batches one is observed; weight of earlier accesses, in lookups.
    updates: whether rows that the plan has all in memory can be updated as well as those in tiers; they are
        then copied into the process's own memory.
    update_log: folder of the logs of row updates, which then survive the process; a subfolder for each of
        several models. For a single server process, as `updates` is.
    store_url, store_password, store_password_file: of the remote store, in place of the plan's. The password
        itself can be given by a variable only.
    max_connections, max_buffered_bytes, keep_alive_s, head_timeout_s, body_timeout_s, write_timeout_s: limits
        of connections (docs/protocol.md); max_connections: at most what the limit of file descriptors allows.
    docs: whether /docs and /openapi.json are answered.
    prediction_log, prediction_log_...: folder of the log of predictions, and `PredictionLogSettings`.
    live_quality, live_quality_...: `LiveQualitySettings`; needs a prediction log.
    log_level, log_format: minimum level and format of messages on standard error.
    access_log: share of answers that get a line there.
    All others, if given, replace the plan's value of the same name.
    """

    bundle: OptionalModelPlace = None
    plan: OptionalModelPlace = None
    plans: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(named_files)] = ()
    models: Path | None = None
    model_urls: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_prefixes)] = ()
    model_cache: Path | None = None
    model_cache_bytes: Annotated[int, Field(ge=1)] = 64 * 2**30
    model_share: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(named_numbers)] = ()
    model_weight: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(named_numbers)] = ()
    model_name: Annotated[str, AfterValidator(valid_name)] | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    runtime: Annotated[str, AfterValidator(_auto_or_registered)] = "auto"
    device: str | None = None
    precision: DensePrecision = "fp32"
    width: Annotated[int, Field(ge=1)] | None = None
    lanes: Annotated[int, Field(ge=1, le=256)] = 1
    lane: Literal["auto", "inline", "thread", "process"] = "auto"
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    policy: Policy | None = None
    admin_token: Annotated[str, Field(min_length=16)] | None = None
    tokens: Path | None = None
    open_rights: Annotated[tuple[OpenRight, ...], BeforeValidator(_listed)] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    drain_grace_s: Seconds = 1.0
    drain_timeout_s: Seconds = 10.0
    docs: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: LogFormat = "text"
    access_log: Annotated[float, Field(ge=0, le=1)] = 0.0
    tier_directory: Path | None = None
    drift_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    drift_every: Annotated[int, Field(ge=1)] | None = None
    drift_memory: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    updates: bool = False
    update_log: Path | None = None
    store_url: StoreUrl | None = None
    store_password: SecretStr | None = None
    store_password_file: Path | None = None
    prediction_log: Path | None = None
    prediction_log_sample: LogShare | None = None
    prediction_log_leave_out: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    prediction_log_hash: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    prediction_log_session: str | None = None
    prediction_log_flush_s: FlushSeconds | None = None
    prediction_log_keep_h: KeptHours | None = None
    prediction_log_max_bytes: LogBytes | None = None
    prediction_log_window_s: WindowSeconds | None = None
    prediction_log_unlabeled: Unlabeled | None = None
    live_quality: Mode = "off"
    live_quality_span_s: Annotated[float, Field(gt=0, le=MAX_SPAN_S)] = 86400.0
    live_quality_every_s: Annotated[float, Field(gt=0, le=MAX_EVERY_S)] = 60.0
    live_quality_trust: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    live_quality_priority: Priority = "idle"
    live_quality_bound: Annotated[float, Field(ge=0, le=MAX_BOUND)] = 0.2
    default_budget_ms: BudgetMs | None = None
    max_body_bytes: Annotated[int, Field(ge=1)] | None = None
    max_request_rows: TabledRows | None = None
    max_batch_rows: TabledRows | None = None
    max_queued_rows: Rows | None = None
    max_budget_ms: BudgetMs | None = None
    max_connections: Annotated[int, Field(ge=1)] | None = None
    max_buffered_bytes: Annotated[int, Field(ge=2**20)] = ConnectionLimits.buffered_bytes
    keep_alive_s: PositiveSeconds = ConnectionLimits.idle_s
    head_timeout_s: PositiveSeconds = ConnectionLimits.head_s
    body_timeout_s: PositiveSeconds = ConnectionLimits.body_s
    write_timeout_s: PositiveSeconds = ConnectionLimits.write_s

    @model_validator(mode="after")
    def _one_thing_to_serve(self) -> Settings:
        names = [f"--{name}" for name in SERVED if getattr(self, name)]
        if len(names) != 1:
            ways = "--bundle DIR or --plan FILE, or several models: --plan NAME=FILE, --models DIR"
            beside = f"; not {' and '.join(names).replace('plans', 'plan NAME=FILE')}" if names else ""
            raise ValueError(f"give either {ways}{beside}")
        if isinstance(self.plan, ModelUrl) and not self.plan.is_plan:
            raise ValueError("the URL of a plan ends with .json; give that of a bundle with --bundle")
        if isinstance(self.bundle, ModelUrl) and self.bundle.is_plan:
            raise ValueError("a URL with .json is a plan's; give it with --plan")
        bundle_only = {"runtime", "device", "precision", "width", "lanes", "lane"} & self.model_fields_set
        if self.bundle is None and bundle_only:
            raise ValueError(f"the plan names paths and lanes; leave out {', '.join(sorted(bundle_only))}")
        return self

    @model_validator(mode="after")
    def _number_of_models_fits(self) -> Settings:
        if self.bundle is None and self.plan is None:
            for name in ("model_name", "tier_directory"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for a single model; there are several")
        elif self.model_share or self.model_weight:
            raise ValueError("model_share and model_weight are for several models; there is one")
        if sum(numbers_of(self.model_share).values()) > 1 + 1e-9:
            raise ValueError("model_share: the shares of all models add up to more than 1")
        return self

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("give both --tls-cert FILE and --tls-key FILE, or neither")
        if self.store_url is not None and Login.from_url(self.store_url).password is not None:
            raise ValueError(
                "store_url: leave the password out; POLYREC_STORE_PASSWORD and a file keep it secret"
            )
        if self.processes > 1 and (self.updates or self.update_log is not None):
            name = "--updates" if self.update_log is None else "--update-log"
            raise ValueError(f"{name} is for one server process: an update reaches only one of several")
        last = self.port + self.processes if self.processes > 1 else self.port
        if last > 65535:
            raise ValueError(
                f"port: its {self.processes} processes also need ports {self.port + 1} to {last}, "
                "and the last is 65535; choose a lower one (0: any free ones)"
            )
        if self.port and self.grpc_port is not None and self.port <= self.grpc_port <= last:
            raise ValueError(
                f"grpc_port: HTTP and the processes' own ports are {self.port} to {last}; choose another "
                "(0: any free one)"
            )
        if self.live_quality != "off" and self.prediction_log is None:
            raise ValueError("--live-quality needs --prediction-log FOLDER")
        return self

    def model_files(self, strict: bool = False) -> ModelFiles:
        """Returns the files of several models. Raises SettingsError, if `strict` also for an invalid name."""
        if self.models is None:
            return ModelFiles(files_of(self.plans), {})
        try:
            files = models_in(self.models)
            if strict and files.invalid:
                raise ValueError(next(iter(files.invalid.values())))
        except ValueError as e:
            raise SettingsError(f"--models {self.models}: {e}") from None
        return files

    def allows(self, url: ModelUrl) -> bool:
        """Whether admin calls may load from this URL."""
        return any(url.is_below(ModelUrl(prefix)) for prefix in self.model_urls)

    @property
    def model_cache_folder(self) -> Path:
        """Folder of fetched bundles. Raises SettingsError if none is given and there is no home."""
        return self.model_cache or _default_cache()

    def check_shares(self, names: Collection[str]) -> None:
        """Raises SettingsError if a share or weight names a model that is not served."""
        for name in (*numbers_of(self.model_share), *numbers_of(self.model_weight)):
            if name not in names:
                known = ", ".join(f"'{each}'" for each in names)
                raise SettingsError(
                    f"no model '{shortened(name)}' for its share or weight; there are {known}"
                )

    def share_of(self, name: str) -> ModelShare:
        """Returns the share and weight of one of several models in the lanes' time."""
        return ModelShare(numbers_of(self.model_weight).get(name), numbers_of(self.model_share).get(name))

    def apply_to(self, plan: Plan) -> Plan:
        """Returns the plan with these settings in place of its own. Raises SettingsError."""
        limits = plan.limits.model_dump()
        limits |= {k: v for k in limits if (v := getattr(self, k)) is not None}
        merged = plan.model_dump()
        merged["limits"] = limits
        merged["default_budget_ms"] = self.default_budget_ms or plan.default_budget_ms
        merged["routing"]["policy"] = self.policy or plan.routing.policy
        tiers = {
            "directory": self.tier_directory,
            "drift_s": self.drift_s,
            "drift_every": self.drift_every,
            "drift_memory": self.drift_memory,
        }
        if given := {k: v for k, v in tiers.items() if v is not None}:
            if plan.placement is None and not self.updates:
                raise SettingsError("tier_directory and drift_... need updates, or a plan with a placement")
            merged["placement"] = (merged["placement"] or {"paths": ()}) | given
        if plan.placement is not None and plan.placement.remote is not None:
            merged["placement"]["remote"] |= self._store()
        try:
            return Plan.model_validate(merged)
        except ValidationError as e:
            raise SettingsError(one_line(e)) from None

    def connection_limits(self, connected: int = 0) -> ConnectionLimits:
        """Returns the connection limits, which apply to HTTP and gRPC separately.

        connected: connections open now. The other open file descriptors leave room for so many at most.
        """
        connections = max_connections(
            open_descriptors() - connected, self.tls_cert is not None, self.grpc_port is not None
        )
        if self.max_connections is not None:
            connections = min(connections, self.max_connections)
        return ConnectionLimits(
            head_s=self.head_timeout_s,
            body_s=self.body_timeout_s,
            write_s=self.write_timeout_s,
            idle_s=self.keep_alive_s,
            connections=connections,
            buffered_bytes=self.max_buffered_bytes,
        )

    def prediction_log_settings(self, folder: Path) -> PredictionLogSettings:
        """Returns the settings of a prediction log in `folder`."""
        given = {n: v for n in LOG_SETTINGS if (v := getattr(self, PREDICTION_LOG + n)) is not None}
        return PredictionLogSettings(folder=folder, **given)

    def live_quality_settings(self) -> LiveQualitySettings:
        """Returns the settings of live quality."""
        return LiveQualitySettings(
            mode=self.live_quality,
            span_s=self.live_quality_span_s,
            every_s=self.live_quality_every_s,
            trusted=self.live_quality_trust,
            priority=self.live_quality_priority,
            bound=self.live_quality_bound,
        )

    def _store(self) -> dict[str, Any]:
        """Returns the given settings of the remote store; one form of a password replaces the other too."""
        given: dict[str, Any] = {} if self.store_url is None else {"url": self.store_url}
        if self.store_password is not None or self.store_password_file is not None:
            given |= {"password": self.store_password, "password_file": self.store_password_file}
        return given
