from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.fetching.url import ModelUrl, model_place


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/models/v7",
        "gs://bucket/models/v7/plan.json",
        "http://127.0.0.1:8000/v7",
        "file:///models/v7",
        "abfs://container@account.dfs.core.windows.net/v7",
        "memory://v7",
    ],
)
def test_a_place_has_a_url(text: str) -> None:
    assert str(ModelUrl(text)) == str(ModelUrl(text + "/")) == text
    assert model_place(text) == ModelUrl(text)
    assert ModelUrl(text).is_plan == text.endswith(".json")


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a/../../other",
        "s3://bucket/./a",
        "s3://bucket//a",
        "s3://../a",
        "https://host/%2e%2e/a",
        "https://host/a?token=secret",
        "https://host/a#b",
        "https://me:secret@host/a",
        "s3://key:secret@bucket/a",
        "simplecache::s3://bucket/a",
        "zip://x.zip::file:///a",
        "file:///a\n/b",
        "s3://a,s3://b",
        "S3://bucket/a",
        "s3://",
        "://bucket",
        "s3://bucket/" + "a" * 1000,
    ],
)
def test_ambiguous_urls_and_urls_with_secrets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a URL of a model") as error:
        model_place(text)
    assert "secret" not in str(error.value)


def test_local_paths_stay_local(tmp_path: Path) -> None:
    assert model_place("models/v7") == Path("models/v7")
    assert model_place(tmp_path) == tmp_path
    with pytest.raises(ValueError, match="path"):
        model_place(7)


def test_bundles_of_a_plan_lie_relative_to_it() -> None:
    plan = ModelUrl("s3://bucket/plans/v7/plan.json")
    assert plan.folder == ModelUrl("s3://bucket/plans/v7")
    assert plan.beside(Path("table")) == ModelUrl("s3://bucket/plans/v7/table")
    assert plan.beside(Path("./table/")) == ModelUrl("s3://bucket/plans/v7/table")
    assert plan.beside(Path("../v6/table")) == ModelUrl("s3://bucket/plans/v6/table")
    assert ModelUrl("file:///a/plan.json").beside(Path("../b")) == ModelUrl("file:///b")
    for outside in ("/etc", "../../../x", "../../..", "s3://other/x", "a b", "a?b"):
        with pytest.raises(ValueError, match=r"URL|relative"):
            plan.beside(Path(outside))


def test_prefixes_end_at_whole_parts_of_a_path() -> None:
    prefix = ModelUrl("http://host:80/models/")
    assert ModelUrl("http://host:80/models/v7").is_below(prefix)
    assert ModelUrl("http://host:80/models").is_below(prefix)
    for other in ("http://host:80/models-of-others", "http://host:8000/models", "https://host:80/models/v7"):
        assert not ModelUrl(other).is_below(prefix)


@given(st.text("ab./", max_size=20), st.text("ab./", max_size=20))
def test_relative_paths_cannot_escape_a_url_prefix(folder: str, relative: str) -> None:
    """`is_below` compares text; what it calls below has no part that leads elsewhere."""
    try:
        place = ModelUrl(f"s3://bucket/{folder}/plan.json").beside(Path(relative))
    except ValueError:
        return
    assert not {"", ".", ".."} & set(str(place).removeprefix("s3://").split("/"))
