"""The agent port beside a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polyrec.cluster.agent import Agent
from polyrec.server.child import start


def test_an_agent_answers_with_the_weight_and_the_drain(bundle_dir: Path) -> None:
    async def asked(port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line = await reader.read()
        writer.close()
        return line.decode()

    async def talk(url: str) -> None:
        read = asyncio.Event()
        agent = Agent(url, read.set)
        port = await agent.start("127.0.0.1")
        assert agent.nominal_rows_s > 0
        assert await asked(port) == "ready up 100%\n"
        await read.wait()
        agent.draining = True
        assert await asked(port) == "drain\n"
        agent.stop()

    with start({"bundle": bundle_dir, "drain_grace_s": 0}, lifeline=True) as server:
        asyncio.run(talk(server.url))
