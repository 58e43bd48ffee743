"""Limits the calls in progress of each client network, so that no client takes the places of all others.

gRPC ends a call only once its client has received the response, however long that takes, and offers no way to
end it earlier. A client that grants no flow-control window keeps its calls open for as long as it likes; at
`maximum_concurrent_rpcs`, gRPC would reject everybody else's, health checks included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from polyrec.server.access.rates import network_of
from polyrec.server.errors import TooBusy
from polyrec.server.grpc.calls import abort, peer_of

Behavior = Callable[[Any, Any], Awaitable[Any]]


class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The calls in progress of one server, at most `max_calls`.

    A network's new call is rejected while the network has as many calls as there are free places: one network
    gets at most half of the places, and places remain for others. exceeded: see MessageReader.
    """

    def __init__(self, max_calls: int, exceeded: Callable[[str], object]) -> None:
        self._free = max_calls
        self._exceeded = exceeded
        self._by_network: Counter[str] = Counter()

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Returns the method's handler, wrapped to count the call."""
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._counted(handler.stream_stream))
        return grpc.stream_unary_rpc_method_handler(self._counted(handler.stream_unary))

    def _counted(self, behavior: Behavior) -> Behavior:
        async def answer(requests: Any, context: Any) -> Any:
            try:
                self._enter(context)
            except TooBusy as e:
                await abort(context, e)
            return await behavior(requests, context)

        return answer

    def _enter(self, context: Any) -> None:
        """Counts a call until its client has received the response. Raises TooBusy."""
        peer = peer_of(context.peer())
        network = "" if peer is None else network_of(peer[0])
        if self._by_network[network] >= self._free:
            self._exceeded("grpc_calls")
            raise TooBusy("grpc_calls", "too many calls of this network are in progress")
        self._free -= 1
        self._by_network[network] += 1
        context.add_done_callback(lambda _: self._leave(network))

    def _leave(self, network: str) -> None:
        self._free += 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]
