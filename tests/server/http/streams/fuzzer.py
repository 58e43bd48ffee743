"""The stream fuzzer put together: a real server in a child process, the reference in this one."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import uvloop

from polyrec.models.bundle.bundle import Bundle
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine
from polyrec.server.app.settings.settings import Settings
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import create_app
from polyrec.server.source.model_source import ModelSource
from tests.forking import start
from tests.server.http.streams.client import Barrier, play
from tests.server.http.streams.corpus import Corpus, corpus_of
from tests.server.http.streams.reference import Reference, differences
from tests.server.http.streams.scripts import Stream, stream_of

TOKEN = "a token for the stream fuzzer"
MAX_BODY_BYTES = 60_000


@dataclass(slots=True)
class Fuzzer:
    """Plays streams to the server at `address` and compares them with `reference`."""

    address: tuple[str, int]
    corpus: Corpus
    reference: Reference
    runner: asyncio.Runner
    log: Path

    def __repr__(self) -> str:
        """Short: hypothesis prints what it calls a test with."""
        return f"Fuzzer(address={self.address})"

    def drawn(self, random: Random) -> Stream:
        """A random stream."""
        return stream_of(random, self.corpus, TOKEN.encode(), MAX_BODY_BYTES)

    def run(self, stream: Stream) -> list[str]:
        """Differences, one line each."""
        return self.runner.run(self.played(stream))

    @property
    def complaints(self) -> str:
        """Returns the server's log; at level `error` that is nothing unless it is at fault."""
        return self.log.read_text()

    async def played(self, stream: Stream, statuses: Counter[int] | None = None) -> list[str]:
        """The same, on the loop. statuses: counts the answers."""
        barrier = Barrier(self.address)
        try:
            heard = await play(self.address, stream, barrier)
        finally:
            barrier.close()
        if statuses is not None:
            statuses.update(answer.status for own in heard for answer in own.answers)
        return await differences(stream, heard, self.reference)


@contextmanager
def served(bundle: Bundle, clicks: Path) -> Iterator[Fuzzer]:
    """A server of that bundle. Use as a context."""
    given = {
        "bundle": bundle.path,
        "admin_token": TOKEN,
        "default_budget_ms": 60_000,
        "max_body_bytes": MAX_BODY_BYTES,
        "drain_grace_s": 0,
        "log_level": "error",
    }
    engine = Engine()
    engine.load(*ModelSource(Settings.model_validate(given)).read())
    log = Path(tempfile.mkdtemp(prefix="polyrec-streams-")) / "log"
    try:
        with (
            log.open("w") as stderr,
            start(given, stderr) as child,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            host, _, port = child.url.removeprefix("http://").partition(":")
            engine.access = Access(engine.metrics, admin_token=TOKEN)
            reference = Reference(create_app(engine, Admin(engine)))
            yield Fuzzer((host, int(port)), corpus_of(bundle, clicks), reference, runner, log)
    finally:
        engine.close()
        shutil.rmtree(log.parent)
