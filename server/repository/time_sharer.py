"""Makes each new generation of a model share lane time with other models, in place of the previous one."""

from __future__ import annotations

from collections.abc import Callable

from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.planner.routing.sharing.pools import place_of
from polyrec.server.app.serving import Serving
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.dispatch.shared_time import SharedTime


class TimeSharer:
    """A callback for each generation that enters service; the previous one then stops taking turns.

    other: returns the dispatcher of another model on the same event loop.
    """

    def __init__(self, shared: SharedTime, share: ModelShare, other: Callable[[], Dispatcher | None]) -> None:
        self._shared, self._share, self._other = shared, share, other
        self._current: Dispatcher | None = None

    def __call__(self, serving: Serving) -> None:
        if self._current is not None:
            self._current.leave_turns()
        self._current = dispatcher = serving.dispatcher
        dispatcher.share_time(
            self._shared, [place_of(lane) for lane in serving.plan.all_lanes()], self._share
        )
        beside = self._other()
        if beside is not None:
            dispatcher.share_loop(beside)
