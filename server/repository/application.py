"""Routes each request to the application of the model that it names, or to the default model's.

    /v1/models/NAME/predict    /v1/predict of NAME; likewise everything else below /v1
    /v2/models/NAME/...        Open Inference Protocol of NAME
    everything else            the default model

Each model has an application over its own engine, so that no request can reach the features of another model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from polyrec.server.app.engine import Engine
from polyrec.server.app.served_model import ALIAS, RESERVED
from polyrec.server.app.serving import Serving
from polyrec.server.errors import NotFound, NotReady
from polyrec.server.http.app import Application
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.reply import error_reply
from polyrec.server.http.oip import infer_target
from polyrec.server.repository.repository import ModelRepository

V1, V2 = "/v1/models/", "/v2/models/"
NAMED_V1 = ("predict", "rank")


class ModelsApplication:
    """The ASGI application of all models.

    make: creates the application of one model.
    hot: endpoints of all models that may be answered without ASGI, by raw path. Kept current when models are
        reloaded, loaded or unloaded.
    """

    def __init__(self, models: ModelRepository, make: Callable[[Engine], Application]) -> None:
        self.engine = models.default
        self._models = models
        self._make = make
        self._applications: dict[Engine, Application] = {}
        self._hot: dict[bytes, HotEndpoint] = {}
        self._follow()
        models.on_change.append(self._follow)

    @property
    def hot(self) -> Mapping[bytes, HotEndpoint]:
        """Endpoints answered without ASGI; always the same mapping object."""
        return self._hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._applications[self.engine]
        if scope["type"] == "http":
            try:
                name, rest = _named(scope["path"])
                if name is not None:
                    application = self._applications[self._models.find(name)]
                if rest is not None:
                    # change the scope in place, as the connection reads what the application adds to it
                    scope["path"], scope["raw_path"] = rest, quote(rest).encode()
            except (NotFound, NotReady) as e:
                await error_reply(e)(scope, receive, send)
                return
        await application(scope, receive, send)

    def _follow(self) -> None:
        """Creates the applications of new models and drops those of removed ones."""
        before = self._applications
        self._applications = {}
        for engine in self._models.engines:
            application = before.get(engine)
            if application is None:
                application = self._make(engine)
                engine.on_adopt.append(self._index)
            self._applications[engine] = application
        self._index()

    def _index(self, adopted: Serving | None = None) -> None:
        """Collects the hot endpoints again, since a reload may change a model's name."""
        hot = dict(self._applications[self.engine].hot)
        for engine, application in self._applications.items():
            infer = application.hot[infer_target(ALIAS)]
            hot[infer_target(engine.name)] = infer
            for page in NAMED_V1:
                hot[f"{V1}{engine.name}/{page}".encode()] = application.hot[f"/v1/{page}".encode()]
        for gone in self._hot.keys() - hot.keys():
            del self._hot[gone]
        self._hot.update(hot)


def _named(path: str) -> tuple[str | None, str | None]:
    """Returns the model that a path names, if any, and the path in its application, None if unchanged."""
    if path.startswith(V1):
        name, slash, rest = path.removeprefix(V1).partition("/")
        return (name, f"/v1/{rest}") if slash else (None, None)
    if path.startswith(V2):
        name = path.removeprefix(V2).partition("/")[0]
        return (None if name == RESERVED else name), None
    return None, None
