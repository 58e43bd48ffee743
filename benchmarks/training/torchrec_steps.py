"""Trains TorchRec's DLRM on a CPU, for comparison with Polyrec's trainer.

    # in an environment of its own, beside torch:
    pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict iopath torchmetrics \\
        lightning-utilities portalocker pyre-extensions typing-inspect mypy-extensions orjson pyvers

TorchRec's planner places whole tables on workers, row-wise Adagrad is fused into their backward pass
(fbgemm), and its net is data-parallel. One worker trains in `benchmarks.training.streamed_beside`, two in
`benchmarks.training.exchange`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from polyrec.models.schema.batch import F32, I64, take_bags
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.row_order import epoch
from polyrec.models.training.source import RowSource, TrainingRows
from polyrec.models.training.stepper import Step
from polyrec.models.training.workers.group import WorkerGroup

PREDICTED_AT_ONCE = 8192


class TorchRecSteps:
    """Iterates over training steps of TorchRec's DLRM on a source's windows; every worker must iterate."""

    def __init__(self, learner: Learner, encoder: Encoder, source: RowSource, group: WorkerGroup) -> None:
        warnings.simplefilter("ignore")
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
        from torchrec.models.dlrm import DLRM, DLRMTrain
        from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        shape, schema, recipe = learner.training.architecture, learner.schema, learner.recipe
        self._source, self._recipe, self._group = source, recipe, group
        layouts = [schema.layout(role) for role in ROLES]
        self._names = [f.name for layout in layouts for f in (*layout.singles, *layout.bags)]
        # a pooling belongs to a table: the mean of a single value is the value
        sums = not any(f.pooling == "mean" for f in schema.categorical)
        tables = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=shape.width,
                num_embeddings=encoder.vocabularies[name].rows,
                feature_names=[f.name for f in features],
                pooling=PoolingType.SUM if sums else PoolingType.MEAN,
            )
            for name, features in schema.tables.items()
        ]
        cpu = torch.device("cpu")
        bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        layers = [*shape.bottom, shape.width], [*shape.top, 1]
        model = DLRMTrain(DLRM(bags, len(schema.numbers), *layers, dense_device=cpu))
        rows_lr = {"lr": recipe.sparse_lr}
        apply_optimizer_in_backward(RowWiseAdagrad, model.model.sparse_arch.parameters(), rows_lr)
        topology = Topology(world_size=group.size, compute_device="cpu", local_world_size=group.size)
        sharders = [EmbeddingBagCollectionSharder()]
        # the optimizer in the backward pass leaves data-parallel tables as they are
        sharded = ParameterConstraints(sharding_types=["table_wise"])
        planner = EmbeddingShardingPlanner(
            topology=topology, constraints=dict.fromkeys(schema.tables, sharded)
        )
        plan = planner.collective_plan(model, sharders, dist.group.WORLD)
        self._model = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        dense = [p for name, p in self._model.named_parameters() if "sparse_arch" not in name]
        self._dense = torch.optim.AdamW(dense, lr=recipe.dense_lr, weight_decay=recipe.dense_decay)

    def __iter__(self) -> Iterator[Step]:
        random, recipe, number = np.random.default_rng(self._recipe.seed), self._recipe, 0
        batch_rows = recipe.rows_of_step(self._source.size)
        while True:
            for window in self._source.windows():
                for chosen in epoch(window.rows, window.data.group, batch_rows, random):
                    number += 1
                    own = np.array_split(chosen, self._group.size)[self._group.rank]
                    self._dense.zero_grad()
                    loss, _ = self._model(self._batch(window.data, own))
                    loss.backward()
                    self._dense.step()
                    yield Step(number, float(loss), chosen.size, recipe.dense_lr)

    @torch.no_grad()
    def predict(self, data: TrainingRows, rows: I64) -> F32:
        """Returns the probabilities of one worker's rows, float32 [rows]."""
        self._model.eval()
        found = []
        for start in range(0, rows.size, PREDICTED_AT_ONCE):
            _, (_, logits, _) = self._model(self._batch(data, rows[start : start + PREDICTED_AT_ONCE]))
            found.append(logits.sigmoid().numpy())
        self._model.train()
        return np.concatenate(found)

    def _batch(self, data: TrainingRows, rows: I64) -> Any:
        """Returns TorchRec's batch of some rows, with each context expanded."""
        from torchrec.datasets.utils import Batch
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        batch = data.batch(rows).exploded()
        values, lengths = [], []
        for block in (batch.context, batch.candidate):
            values.append(block.ranks.T.reshape(-1))
            lengths.append(np.ones(block.ranks.size, np.int64))
            # feature by feature, where a block is row by row
            order = np.arange(block.rows * block.bags).reshape(block.rows, block.bags).T.reshape(-1)
            taken, offsets = take_bags(block.bag_values, block.bag_offsets, order)
            values.append(taken)
            lengths.append(np.diff(offsets))
        sparse = KeyedJaggedTensor(
            keys=self._names,
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate(lengths)),
        )
        dense = np.concatenate((batch.context.dense, batch.candidate.dense), axis=1)
        return Batch(torch.from_numpy(dense), sparse, torch.from_numpy(data.label[rows]))
