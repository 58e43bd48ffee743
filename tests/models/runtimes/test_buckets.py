from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.runtimes.buckets import LARGEST, Buckets
from polyrec.models.schema.batch import F32
from polyrec.models.transfer import wait_for

WIDTH, SLOTS, DENSE = 8, PerBlock(2, 3), PerBlock(2, 4)


def net_of(interaction: str) -> ContextOnce:
    torch.manual_seed(1)
    shape = Architecture.model_validate(
        {"width": WIDTH, "bottom": (16,), "top": (32, 8), "interaction": interaction}
    )
    return ContextOnce(DenseNet(shape, DENSE, SLOTS)).eval()


def random_inputs(seed: int, rows: int, contexts: int | None) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    every = rows if contexts is None else contexts
    return Inputs(
        torch.randn(every, DENSE.context, generator=g),
        torch.randn(rows, DENSE.candidate, generator=g),
        torch.randn(every, SLOTS.context, WIDTH, generator=g),
        torch.randn(rows, SLOTS.candidate, WIDTH, generator=g),
        None if contexts is None else torch.randint(contexts, (rows,), generator=g),
    )


def expected(net: ContextOnce, inputs: Inputs) -> F32:
    out: F32 = net(inputs).sigmoid().numpy()
    return out


CASES = [
    (1, None),
    (5, None),
    (8, None),
    (3, None),
    (700, None),
    (7, 1),
    (64, 3),
    (9, 4),
    (2, 1),
    (LARGEST + 1, None),
]


@pytest.mark.parametrize("interaction", ["dot", "cat", "cross"])
def test_padded_batches_get_the_answers_of_plain_ones(interaction: str) -> None:
    net = net_of(interaction)
    with torch.inference_mode():
        buckets = Buckets(net, torch.device("cpu"), torch.float32, capture=False)
        for seed, (rows, contexts) in enumerate(CASES * 2):
            inputs = random_inputs(seed, rows, contexts)
            np.testing.assert_allclose(buckets(inputs), expected(net, inputs), atol=1e-6)
    wanted = {(None, 1), (None, 8), (None, 4), (None, 1024), (1, 8), (8, 64), (8, 16), (1, 2)}
    assert set(buckets.shapes) == wanted


def test_stale_padding_does_not_change_results() -> None:
    net = net_of("dot")
    with torch.inference_mode():
        buckets = Buckets(net, torch.device("cpu"), torch.float32, capture=False)
        inputs = random_inputs(0, 5, 3)
        first = buckets(inputs)
        wild = random_inputs(1, 8, 4)
        buckets(Inputs(*(x * torch.nan if x.is_floating_point() else x for x in wild)))
        np.testing.assert_allclose(buckets(inputs), first, rtol=0, atol=1e-6)


def test_an_answer_outlives_the_next_batch() -> None:
    with torch.inference_mode():
        buckets = Buckets(net_of("dot"), torch.device("cpu"), torch.float32, capture=False)
        first = buckets(random_inputs(0, 5, None))
        kept = first.copy()
        buckets(random_inputs(1, 5, None))
    np.testing.assert_array_equal(first, kept)


def test_every_shape_is_prepared_when_opened() -> None:
    net = net_of("dot")
    with torch.inference_mode():
        buckets = Buckets(net, torch.device("cpu"), torch.float32, capture=False)
        buckets.prepare(16)
        prepared = set(buckets.shapes)
        assert {c for c, rows in prepared if rows == 4} == {None, 1, 4}
        assert {c for c, rows in prepared if rows == 16} == {None, 1, 8, 16}
        for rows in range(1, 17):
            for contexts in (None, *range(1, rows + 1)):
                inputs = random_inputs(rows, rows, contexts)
                np.testing.assert_allclose(buckets(inputs), expected(net, inputs), atol=1e-6)
    assert set(buckets.shapes) == prepared


def test_a_batch_of_no_rows_has_no_bucket() -> None:
    with torch.inference_mode():
        buckets = Buckets(net_of("dot"), torch.device("cpu"), torch.float32, capture=False)
        assert buckets(random_inputs(0, 0, None)).shape == (0,)
    assert not buckets.shapes


@pytest.mark.gpu
@pytest.mark.parametrize("interaction", ["dot", "cat", "cross"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_replayed_graphs_give_the_answers_of_the_cpu(
    interaction: str, dtype: torch.dtype, near: float
) -> None:
    net = net_of(interaction)
    device = torch.device("cuda")
    with torch.inference_mode():
        answers = [expected(net, random_inputs(seed, *case)) for seed, case in enumerate(CASES)]
    buckets = Buckets(net.to(device, dtype), device, dtype, capture=True)
    with torch.inference_mode():
        buckets.prepare(64)
        for _ in range(2):
            for seed, case in enumerate(CASES):
                inputs = random_inputs(seed, *case)
                there = Inputs(*(None if x is None else x.to(device) for x in inputs))
                for given in (inputs, there):
                    np.testing.assert_allclose(buckets(given), answers[seed], atol=near)


@pytest.mark.gpu
def test_graphs_are_captured_while_other_threads_wait_for_the_device() -> None:
    net, device = net_of("dot"), torch.device("cuda")
    ended = threading.Event()

    def wait_for_the_device() -> None:
        while not ended.is_set():
            wait_for(device)

    waiting = threading.Thread(target=wait_for_the_device)
    waiting.start()
    try:
        with torch.inference_mode():
            inputs = random_inputs(0, 60, 5)
            answer = expected(net, inputs)
            buckets = Buckets(net.to(device), device, torch.float32, capture=True)
            buckets.prepare(64)
            np.testing.assert_allclose(buckets(inputs), answer, atol=1e-5)
    finally:
        ended.set()
        waiting.join()
