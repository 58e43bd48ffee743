"""Writes Python code that reads a data set, for commands that messages suggest."""

from __future__ import annotations

from glob import escape
from pathlib import Path

from polyrec.models.data.reader import is_glob
from polyrec.models.data.remote.path import RemotePath, data_path
from polyrec.models.text import python_literal


def code_to_read(data: str | Path) -> str:
    """Returns Python that reads a file, folder or glob into the table `t`; `p` is pyarrow.parquet.

    Columns are those of the files: pyarrow's own reader adds the names of folders like `day=1`, and knows no
    globs. In double quotes, for a command in single ones.
    """
    path = data_path(data)
    if isinstance(path, RemotePath):
        return f"import pyarrow.parquet as p; t = p.read_table({python_literal(str(data))})"
    files = str(path) if is_glob(path) else escape(str(path)) + ("/**/*.parquet" if path.is_dir() else "")
    return (
        "import pyarrow as a, pyarrow.parquet as p; from glob import glob; "
        f"files = sorted(glob({python_literal(files)}, recursive=True)); "
        "t = a.concat_tables([p.ParquetFile(f).read() for f in files])"
    )
