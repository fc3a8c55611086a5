"""A journal keeps results over a kill, and drops the line that was being written."""

import pytest

from searchjax.data.synthesis.journal import Journal


def test_results_come_back_without_the_half_written_line(tmp_path):
  path = tmp_path / "j.jsonl"
  with Journal(path) as journal:
    assert not path.exists()
    journal.add("a", [1])
    journal.add("é", {"x": None})
    journal.flush()
  whole = path.read_bytes()
  path.write_bytes(whole + b'["c", [1')
  with Journal(path) as journal:
    assert journal.kept == {"a": [1], "é": {"x": None}}
    journal.add("c", 2)
  assert path.read_bytes() == whole + b'["c", 2]\n'


def test_a_broken_line_within_is_told(tmp_path):
  (tmp_path / "j").write_text('["a", 1]\nnonsense\n["b", 1]\n')
  with pytest.raises(ValueError, match="line 2: not a line of a journal"):
    Journal(tmp_path / "j")


@pytest.mark.parametrize("line", [
  '[["a"], 1]', '{"a": 1, "b": 2}', '["a"]', '["a", 1, 2]', "5", "[" * 100_000, '["a", "of another form"]'])
def test_a_line_that_is_json_but_no_result_is_told(tmp_path, line):
  (tmp_path / "j").write_text(f'["a", 1]\n{line}\n["b", 1]\n')
  with pytest.raises(ValueError, match="line 2: not a line of a journal .*; delete the work folder"):
    Journal(tmp_path / "j", lambda value: isinstance(value, int))
