"""Runs `polyrec loop`: executes iterations, or leaves a command for a loop in another process."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from polyrec.cli.serve.rollout_call import start_arguments
from polyrec.client.admin import AdminCalls, NoAnswer
from polyrec.loop.canary import Canary
from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import LEARNED, LoopError, forced
from polyrec.loop.loop import Loop
from polyrec.loop.status import as_json, lines
from polyrec.loop.steps import LoopSettings

HELD = 3
"""Exit status of `--once` if the iteration was held, rolled back or dropped."""
POLL_S = 1.0


def run_call(args: argparse.Namespace) -> int:
    """Runs one call and returns the exit status. Raises PolyrecError."""
    folder = LoopFolder(Path(args.state))
    if args.call == "run":
        return _run(folder, args)
    if args.call != "hold":  # which also applies to a loop that is yet to be started
        folder.require()
    if args.call == "status":
        print(json.dumps(as_json(folder)) if args.json else "\n".join(lines(folder)))
    elif args.call == "hold":
        folder.hold(args.step, args.reason)
        release = f"polyrec loop release {args.step} --state {shlex.quote(args.state)}"
        print(f"the loop will pause before {args.step}; to release it: {release}")
    elif args.call == "release":
        folder.release(args.step)
        print(f"{args.step} is released")
    else:
        _give(folder, args.call, args.iteration)
    return 0


def _give(folder: LoopFolder, command: str, number: int | None) -> None:
    """Leaves a command for the loop. Raises LoopError if it does not apply.

    number: the iteration that it is meant for; None: the current one.
    """
    iteration = folder.last()
    if iteration is None:
        raise LoopError("there is no iteration yet")
    if number not in (None, iteration.number):
        raise LoopError(
            f"iteration {number} is not the current one, which is {iteration.number} "
            f"({iteration.state.replace('_', ' ')}): nothing was changed"
        )
    if command == "force":
        following = forced(iteration, 0.0).step
        folder.give("force", iteration.number)
        print(f"iteration {iteration.number} continues with {following} as soon as the loop runs")
        return
    if iteration.state != "running":
        raise LoopError(f"iteration {iteration.number} has ended: {iteration.state.replace('_', ' ')}")
    folder.give("drop", iteration.number)
    print(f"iteration {iteration.number} ends as soon as the loop runs")


def _run(folder: LoopFolder, args: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    settings = LoopSettings(
        log=Path(args.log).resolve(),
        least_clicks=args.least_clicks,
        drift=args.drift,
        max_drop=args.max_drop,
        max_calibration=args.max_calibration,
        margin=args.margin,
        train_options=tuple(shlex.split(args.train_options)),
        keep=args.keep,
    )
    # interrupt, so that the training process ends with this one
    signal.signal(signal.SIGTERM, _interrupted)
    folder.create()
    with ExitStack() as stack:
        stack.enter_context(folder.locked())
        canary = None
        if args.url is not None:
            calls = stack.enter_context(AdminCalls(args.url, args.model))
            with suppress(NoAnswer):  # it may come up later
                calls.require_one_model()
            canary = Canary(calls, start_arguments(args), args.canary_for)
        loop = Loop(
            folder,
            settings,
            args.every,
            args.settle,
            args.since,
            canary,
            lambda line: print(line, flush=True),
        )
        loop.begin(Path(args.plan))
        return _once(loop) if args.once else _forever(loop)


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _once(loop: Loop) -> int:
    """Runs an iteration until it ends or stops. Raises LoopError if a step failed."""
    pause_s = loop.advance(at_once=True)
    while (iteration := loop.folder.last()) is not None and iteration.state == "running" and not pause_s:
        pause_s = loop.advance()
    assert iteration is not None
    if iteration.error is not None and iteration.state == "running":
        raise LoopError(f"{iteration.step}: {iteration.error}")
    return 0 if iteration.state in (*LEARNED, "waiting") else HELD


def _forever(loop: Loop) -> int:
    while True:
        until = time.monotonic() + loop.advance_or_wait()
        controls = loop.folder.controls()
        # react to a command at once
        while (left_s := until - time.monotonic()) > 0 and loop.folder.controls() == controls:
            time.sleep(min(left_s, POLL_S))
