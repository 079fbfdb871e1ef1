"""Which checkpoint locations are local directories, and what is read from them."""

from pathlib import Path

import pytest

from ottla.spark.sink.checkpoints import local_path, source_positions


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/srv/checkpoints/a", "/srv/checkpoints/a"),
        ("checkpoints/a", "checkpoints/a"),
        ("/srv/10:30/a", "/srv/10:30/a"),
        ("./10:30", "10:30"),
        ("file:///a%20b", "/a b"),
        ("file:/a/b:c", "/a/b:c"),
        ("s3://bucket/x", None),
        ("hdfs://host:8020/x", None),
        ("10:30/a", None),
        ("my_store:a/b", None),
    ],
)
def test_a_colon_before_the_first_slash_ends_a_scheme_as_in_spark(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


@pytest.mark.parametrize("name", ["plain", "10:30", "a b"])
def test_the_planned_offsets_are_read_from_a_local_checkpoint(name: str, tmp_path: Path) -> None:
    offsets = tmp_path / name / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "7").write_text('v1\n{}\n{"orders":{"0":3}}\n')
    assert source_positions(str(tmp_path / name), 7) == '{"orders":{"0":3}}'
    assert source_positions(str(tmp_path / name), 8) is None
    assert source_positions("s3://bucket/x", 7) is None
