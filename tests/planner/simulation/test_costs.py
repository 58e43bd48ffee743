"""Costs of serving, as a file."""

import pytest

from polyrec.planner.plan import Plan
from polyrec.planner.simulation.costs import BatchCost, Costs, CostsError, load_costs

PLAN = Plan.model_validate({"paths": [{"name": "table@cpu", "bundle": "b", "runtime": "onnx"}]})
COSTS = Costs(turn_s=1e-4, cooled=((0.001, 1e-5),), batches={"table@cpu": BatchCost(batch_s=-1e-5)})


def test_written_costs_are_read(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(COSTS.model_dump_json())
    assert load_costs(file, PLAN) == COSTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no costs .*measure them: python -m polyrec.loadtest.comparison.calibration"),
        ("{", "is not JSON"),
        ('{"turn_s": -1}', "turn_s"),
        ('{"speed": 1}', "speed"),
        ("{}", "lack path 'table@cpu'"),
    ],
)
def test_an_unusable_file_raises_one_line(tmp_path, text, says):
    file = tmp_path / "costs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CostsError, match=says) as caught:
        load_costs(file, PLAN)
    assert "\n" not in str(caught.value)
