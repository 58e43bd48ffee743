"""The models of one server by name; the first is the default, which answers requests that name none.

Each model has its own `Engine` with plans, lanes, queue, metrics and statistics. The server's state (loading,
ready, draining), access control and traces are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare
from polyrec.planner.routing.sharing.pools import place_of
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.served_model import ALIAS
from polyrec.server.app.serving import Serving
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.errors import UnknownModel, shortened
from polyrec.server.live_quality.live import LiveQuality


class ModelRepository:
    """The engines of one server, at least one. All share the state of the first (`Engine(sibling=...)`)."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self.on_change: list[Callable[[], None]] = []
        """Called after a model was added or removed."""
        self._share: Callable[[Engine], None] = lambda engine: None

    def share_time(self, cores: frozenset[int], share_of: Callable[[str], ModelShare]) -> None:
        """Makes the models share lane time, starting with their next generations.

        cores: CPU cores that lanes may use.
        share_of: returns a model's share and weight by its name.
        """
        machine = MachineTime(cores)

        def share(engine: Engine) -> None:
            asked = share_of(engine.name)
            current: Dispatcher | None = None

            def adopted(serving: Serving) -> None:
                nonlocal current
                if current is not None:
                    current.stop_sharing()
                current = serving.dispatcher
                current.share_time(machine, [place_of(lane) for lane in serving.plan.all_lanes()], asked)
                other = self._dispatcher_of_another(engine)
                if other is not None:
                    current.share_loop(other)

            engine.on_adopt.append(adopted)

        self._share = share
        for engine in self.engines:
            share(engine)

    def add(self, engine: Engine, serving: Serving) -> None:
        """Adds a model to those served. engine: created with `Engine(sibling=...)`."""
        self._share(engine)
        self.engines = (*self.engines, engine)
        engine.adopt(serving)
        self._changed()

    def remove(self, engine: Engine) -> None:
        """Removes a model, so that requests no longer find it; the caller must close it."""
        self.engines = tuple(each for each in self.engines if each is not engine)
        self._changed()

    def _changed(self) -> None:
        for changed in self.on_change:
            changed()

    def _dispatcher_of_another(self, engine: Engine) -> Dispatcher | None:
        """Returns a dispatcher of another model on the same loop."""
        for other in self.engines:
            if other is not engine and other.has_loaded:
                return other.serving.dispatcher
        return None

    @property
    def default(self) -> Engine:
        """The engine for requests that do not name a model."""
        return self.engines[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models; while the server loads, the names given by the operator."""
        return tuple(engine.name for engine in self.engines)

    @property
    def live_qualities(self) -> tuple[LiveQuality, ...]:
        """Live quality of each model that measures it; empty while the server loads."""
        return tuple(engine.live_quality for engine in self.engines if engine.live_quality is not None)

    def find(self, name: str, version: str | None = None) -> Engine:
        """Returns the engine of a loaded model.

        Raises UnknownModel with the list of names, NotFound for another version, or NotReady.

        name: a model's name, or the default model's alias.
        version: the bundle's version or its number.
        """
        found = self.default if name == ALIAS else None
        for engine in self.engines:
            # a model's name is final only once it has loaded
            if engine.serving.model.name == name:
                found = engine
        if found is None:
            known = ", ".join(f"'{each}'" for each in self.names)
            raise UnknownModel(f"unknown model '{shortened(name)}'; this server has {known}")
        found.serving.model.check(name, version)
        return found

    @property
    def state(self) -> LifecycleState:
        """The state of the server."""
        return self.default.state

    def enter(self, state: LifecycleState) -> None:
        """Enters another state, for all models."""
        self.default.enter(state)

    def why_unready(self) -> str | None:
        """Returns why the server is not ready, from the first model that is not; None if all are."""
        for engine in self.engines:
            reason = engine.why_unready()
            if reason is not None:
                several = len(self.engines) > 1 and self.state is LifecycleState.READY
                return f"model '{engine.name}': {reason}" if several else reason
        return None

    def attach(self) -> None:
        """Starts watching for lane deaths and live quality on the running loop, before the first request."""
        for engine in self.engines:
            engine.attach()

    def fail_all(self) -> None:
        """Answers all waiting requests with NotReady (503); called when the drain timeout is over."""
        for engine in self.engines:
            engine.fail_all()

    def close(self) -> None:
        """Closes every model; no request is answered afterwards."""
        for engine in self.engines:
            engine.close()
