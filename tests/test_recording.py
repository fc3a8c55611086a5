"""Recorded answers: found again, safe with several writers and killed ones, earliest first."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from searchjax.search.recording import Recording, search_key
from searchjax.search.reply import Result

A = Result("A", "https://a.example", "Tea is hot.")


def key(query="q", provider="serper", **parameters):
  return search_key(provider, query, parameters)


def write(folder, query, result=A, **parameters):
  recording = Recording(folder)
  recording.add("serper", query, parameters, [result])
  recording.close()


def test_an_answer_is_found_by_all_that_identifies_it(tmp_path):
  recording = Recording(tmp_path / "new/folder")
  assert recording.find(key(num_results=7)) is None and not (tmp_path / "new").exists()
  recording.add("serper", "q", {"num_results": 7, "world": 3}, [A])
  recording.add("serper", "empty", {}, [])
  for one in (recording, Recording(tmp_path / "new/folder")):
    assert one.find(key(world=3, num_results=7)) == (A,)
    assert one.find(key("empty")) == ()  # an answer, not a miss
    for other in (key(num_results=7), key("r", num_results=7, world=3),
                  key(provider="brave", num_results=7, world=3), key(num_results=8, world=3)):
      assert one.find(other) is None
  recording.close()
  (path,) = (tmp_path / "new/folder").iterdir()
  row = json.loads(path.read_text().splitlines()[0])
  assert set(row) == {"date", "provider", "query", "parameters", "results"}
  assert row["date"][:2] == "20" and row["date"].endswith("+00:00")


def test_of_two_answers_the_earlier_counts_whatever_the_files_are_called(tmp_path):
  write(tmp_path, "q")
  (path,) = tmp_path.glob("*.jsonl")
  path.rename(tmp_path / "zzz.jsonl")
  write(tmp_path, "q", Result("B", "https://b.example", "Another day."))
  assert len(list(tmp_path.glob("*.jsonl"))) == 2
  assert Recording(tmp_path).find(key()) == (A,)


@pytest.mark.parametrize("spoilt", [
  b'{"date": "2026", "provider": "serper", "query": "r", "par', b"{oops\n", b"\xff\xfe\n", b"[]\n", b"7\n",
  b'{"date": "2026", "provider": "p", "query": "q", "parameters": {}, "results": [["t", "u"]]}\n',
  b'{"date": "2026", "provider": "p", "query": "q", "parameters": {}, "results": null}\n'])
def test_half_a_line_is_ignored_and_counted(tmp_path, spoilt):
  write(tmp_path, "q")
  (path,) = tmp_path.glob("*.jsonl")
  path.write_bytes(path.read_bytes() + spoilt)
  write(tmp_path, "s")
  recording = Recording(tmp_path)
  assert recording.unfinished == 1 and len(recording) == 2
  assert recording.find(key()) == (A,) and recording.find(key("s")) == (A,)


def _write_many(folder, number):
  recording = Recording(folder)
  for i in range(97):
    recording.add("serper", f"{number}/{i}", {}, [A])


def test_several_writers_at_once(tmp_path):
  spawn = multiprocessing.get_context("spawn")
  writers = [spawn.Process(target=_write_many, args=(tmp_path, n)) for n in range(3)]
  for writer in writers:
    writer.start()
  for writer in writers:
    writer.join()
  recording = Recording(tmp_path)
  assert len(recording) == 3 * 97 and recording.unfinished == 0


def test_a_killed_writer_leaves_what_it_wrote(tmp_path, plain_environment):
  program = textwrap.dedent(f"""
    from searchjax.search.recording import Recording
    from searchjax.search.reply import Result
    recording, i = Recording({str(tmp_path)!r}), 0
    while True:
      recording.add("serper", str(i), {{}}, [Result("A", "u", "x" * 997)])
      i += 1
      if i == 101:
        print("ready", flush=True)
    """)
  writer = subprocess.Popen([sys.executable, "-c", program], env=plain_environment,
                            stdout=subprocess.PIPE, text=True)
  assert writer.stdout.readline() == "ready\n"
  writer.send_signal(signal.SIGKILL)
  writer.wait()
  writer.stdout.close()
  recording = Recording(tmp_path)
  assert len(recording) >= 101 and recording.unfinished <= 1
  assert recording.find(key("100")) == (Result("A", "u", "x" * 997),)


def test_a_file_is_no_folder_and_a_full_disk_is_told(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="is a file; give a folder"):
    Recording(tmp_path / "file")
  recording = Recording(tmp_path)
  write = os.write
  monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:-5]))
  with pytest.raises(OSError, match="only .* bytes could be written"):
    recording.add("serper", "q", {}, [A])
  monkeypatch.undo()
  recording.add("serper", "r", {}, [A])  # not behind half a line
  recording.close()
  recording.close()
  again = Recording(tmp_path)
  assert (len(again), again.unfinished) == (1, 1)
  for one in (recording, again):
    assert one.find(search_key("serper", "r", {})) == (A,)
    assert one.find(search_key("serper", "q", {})) is None


def test_a_large_recording_is_read_whole(tmp_path):
  recording = Recording(tmp_path)
  for i in range(2003):
    recording.add("serper", str(i), {"num_results": 10}, [A] * 10)
  recording.close()
  assert len(Recording(tmp_path)) == 2003
