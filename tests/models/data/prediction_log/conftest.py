from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.models.data.prediction_log.log_format import (
    RULES,
    LogRules,
    stored_names,
)
from tests.models.data.prediction_log.written import SCHEMA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / RULES).write_text(
        LogRules(for_schema="clicks", features=stored_names(SCHEMA), window_s=600).model_dump_json()
    )
    return tmp_path
