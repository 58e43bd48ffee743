"""A real server in a child process, an engine in this one, and requests made of generated clicks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Categorical, Schema, load_schema
from polyrec.models.schema.vocabulary import ids_of_ranks
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.planner.plan import Plan, single_path_plan
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine
from polyrec.server.child import ServerProcess
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import create_app
from tests.forking import start, worker
from tests.server.placing import TOKEN

Row = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
AskWithKserve = Callable[[str, str, Arrays, bool, bool], F32]


@dataclass(frozen=True)
class Request:
    """One ranking request of the data: its rows, as a table and as JSON."""

    table: pa.Table
    schema: Schema

    @property
    def rows(self) -> list[Row]:
        return self.table.select(self.schema.context.names + self.schema.candidate.names).to_pylist()

    @property
    def columns(self) -> dict[str, list[Any]]:
        return self.table.select(self.schema.context.names + self.schema.candidate.names).to_pydict()

    @property
    def context(self) -> Row:
        return self.table.select(self.schema.context.names).slice(0, 1).to_pylist()[0]

    @property
    def candidates(self) -> dict[str, list[Any]]:
        return self.table.select(self.schema.candidate.names).to_pydict()


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the workers of lanes that engines of this process open."""
    monkeypatch.setattr("polyrec.server.lanes.child.Popen", worker)


@pytest.fixture(scope="session")
def requests(clicks: Path, bundle: Bundle) -> list[Request]:
    """Ranking requests of the data's last rows, which training never saw."""
    table = pq.read_table(clicks).slice(5400)
    ids = table["request_id"].to_numpy()
    firsts = np.flatnonzero(np.diff(ids, prepend=ids[0])).tolist()
    return [Request(table.slice(a, b - a), bundle.manifest.schema_) for a, b in pairwise(firsts)]


@pytest.fixture(scope="session")
def request_(requests: list[Request]) -> Request:
    """One of them, with more than a few candidates."""
    return max(requests, key=lambda r: r.table.num_rows)


@pytest.fixture(scope="session")
def offline(bundle: Bundle) -> Callable[[Request], F32]:
    """Probabilities from the bundle without any server."""
    runtime = open_runtime("torch", bundle)

    def predict(request: Request) -> F32:
        table = request.table.combine_chunks()
        return runtime.predict(bundle.encoder.from_arrow(table.to_batches()[0]))

    return predict


@pytest.fixture(scope="session")
def tensors(bundle: Bundle) -> Callable[[Request], Arrays]:
    """A request as the tensors of the inference protocol."""
    id_of_rank = {t: ids_of_ranks(v.rank_of_id) for t, v in bundle.encoder.vocabularies.items()}
    unknown: dict[str, int] = {}

    def ids_of(feature: Categorical, column: pa.Array) -> NDArray[np.int64]:
        """Stable ids; of items without one, which are compared, a negative number of the client's own."""
        vocabulary = bundle.encoder.vocabulary(feature)
        ids = id_of_rank[feature.table_name][vocabulary.encode_arrow(column)]
        if feature.table_name == "item":
            values = column.to_pylist()
            for i in np.flatnonzero(ids == vocabulary.oov_id).tolist():
                ids[i] = -1 - unknown.setdefault(values[i], len(unknown))
        return ids

    def of(request: Request) -> Arrays:
        schema = bundle.manifest.schema_
        table = request.table.combine_chunks()
        arrays: Arrays = {}
        dense = [table[d.name].to_numpy() for d in schema.dense]
        arrays["dense"] = np.stack(dense, 1).astype(np.float32)
        singles = []
        for f in schema.categorical:
            column = table[f.name].combine_chunks()
            if f.multi:
                arrays[f"{f.name}.values"] = ids_of(f, column.flatten())
                arrays[f"{f.name}.lengths"] = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
            else:
                singles.append(ids_of(f, column))
        arrays["sparse"] = np.stack(singles, 1)
        return arrays

    return of


@pytest.fixture(scope="session")
def plan(bundle_dir: Path) -> Plan:
    """With a budget that no busy machine uses up: what tests of budgets need they say themselves."""
    plan = single_path_plan(bundle_dir, "table", "torch")
    return plan.model_copy(update={"default_budget_ms": 60_000.0})


@pytest.fixture(scope="module")
def engine(plan: Plan) -> Iterator[Engine]:
    """A loaded engine."""
    engine = Engine()
    engine.load(plan)
    yield engine
    engine.close()


@dataclass(frozen=True)
class Client:
    """Sends requests to an application in this process, one after another, on one event loop."""

    runner: asyncio.Runner
    app: Any

    def send(self, method: str, path: str, **named: Any) -> httpx.Response:
        return self.together([(method, path, named)])[0]

    def post(self, path: str, content: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self.send("POST", path, content=content, headers=dict(headers or {}))

    def predict(self, request: Request) -> Any:
        """The answer to a prediction of its rows, JSON."""
        answer = self.post("/v1/predict", orjson.dumps({"columns": request.columns}))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of that name which carry `labels`."""
        return MetricSamples(self.send("GET", "/metrics").text).total(name, **labels)

    def together(self, calls: list[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        """All at once."""

        async def run() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://polyrec") as client:
                requests = [client.request(method, path, **named) for method, path, named in calls]
                return await asyncio.gather(*requests)

        return self.runner.run(run())


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[Client]:
    """The application of `engine`."""
    with asyncio.Runner() as runner:
        yield Client(runner, create_app(engine))


@pytest.fixture
def opened() -> Iterator[Callable[[Plan], Engine]]:
    """Engines of any plans."""
    engines: list[Engine] = []

    def open_engine(plan: Plan) -> Engine:
        engine = Engine()
        engine.load(plan)
        engines.append(engine)
        return engine

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def client_of(client: Client, opened: Callable[[Plan], Engine]) -> Callable[[Plan], Client]:
    """A client of an engine of that plan, which can be administered."""

    def ask(plan: Plan) -> Client:
        return administered(client, opened(plan))

    return ask


def administered(client: Client, engine: Engine) -> Client:
    """A client of an engine, on the loop of another client, which can be administered."""
    engine.access = Access(engine.metrics, admin_token=TOKEN)
    return Client(client.runner, create_app(engine, Admin(engine)))


def trained_paged(clicks: Path, folder: Path, schema: Schema) -> Bundle:
    """Trains a bundle with rows so long that its few hundred fill pages of a disk."""
    training = RecipeFile(
        architecture=Architecture(width=64, bottom=(16,), top=(32,), interaction="dot"),
        recipe=Recipe(epochs=1, batch_rows=256, hide=0.5, hide_from_rows=100),
    )
    return load_bundle(Learner(open_data(clicks, schema), schema, training).learn(folder).path)


@pytest.fixture(scope="session")
def paged(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with rows so long that its few hundred fill pages of a disk."""
    return trained_paged(clicks, tmp_path_factory.mktemp("placed") / "table", load_schema("trivago"))


@pytest.fixture(scope="session")
def single_valued(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Such a bundle without multi-valued features, whose hot batches are found by a comparison."""
    schema = load_schema("trivago")
    features = [f.model_dump() for f in schema.categorical if not f.multi]
    own = Schema.model_validate(schema.model_dump() | {"categorical": features, "request": ()})
    return trained_paged(clicks, tmp_path_factory.mktemp("placed") / "table", own)


@pytest.fixture(scope="session")
def whole(paged: Bundle) -> Callable[[Request], F32]:
    """Probabilities of `paged` with all rows in memory."""
    return in_memory(paged)


def in_memory(bundle: Bundle) -> Callable[[Request], F32]:
    """Returns a function for probabilities with all rows in memory, by the runtime of placed plans: one whose
    products do not depend, in the last bit, on where in memory their factors lie."""
    runtime = open_runtime("onnx", bundle)

    def predict(request: Request) -> F32:
        return runtime.predict(bundle.encoder.from_arrow(request.table.combine_chunks().to_batches()[0]))

    return predict


@pytest.fixture(scope="session")
def server(bundle_dir: Path) -> Iterator[ServerProcess]:
    """A real server in a process of its own, by the best runtime of this machine."""
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}
    with start(settings | {"open_rights": "priority,quality"}) as child:
        yield child


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the real server."""
    with httpx.Client(base_url=server.url, timeout=120, verify=False) as client:
        yield client


@pytest.fixture
def ask_with_kserve(tmp_path: Path) -> AskWithKserve:
    """Asks by KServe's client in a process of its own, as its messages have the names of tritonclient's."""
    if find_spec("kserve") is None:
        pytest.skip("kserve is not installed")

    def ask(protocol: str, address: str, tensors: Arrays, binary: bool, named: bool) -> F32:
        arrays, answer = tmp_path / "arrays.npz", tmp_path / "answer.npy"
        np.savez(arrays, **tensors)  # type: ignore[arg-type]
        script = Path(__file__).parent / "ask_with_kserve.py"
        files = (str(arrays), str(answer))
        arguments = (protocol, address, *files, str(int(binary)), str(int(named)))
        subprocess.run([sys.executable, "-W", "ignore", str(script), *arguments], check=True)
        return np.asarray(np.load(answer))

    return ask
