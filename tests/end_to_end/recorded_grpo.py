"""train_grpo with its conversations recorded, or forced to be those of a recording.

    python recorded_grpo.py record|replay FILE ARGUMENTS OF train_grpo

Some rollouts of every group follow a script, so that even an untrained policy searches and answers;
the others are sampled, and recorded by their sampling key. A replay forces every turn (the engine's
forced turns), so that a flipped token cannot part two runs that round differently.
"""

import json
import pathlib
import sys

import jax

from searchjax import train_grpo
from searchjax.data.chat import ToolCall
from searchjax.dist.settings import run_main
from searchjax.rollout.episode import Episode


def script(episode):
  """The turns of a rollout that searches: the first is right, the second wrong after two calls."""
  question = episode.question
  if not hasattr(question, "answer") or episode.index > 1:
    return []
  call = ToolCall("search_web", {"query": question.text[: 24 + episode.index]})
  assistant = lambda text, calls=(): {"role": "assistant", "content": text, "tool_calls": list(calls)}
  tool = {"role": "tool", "content": "x"}
  searches = [assistant("", [call]), tool] * (1 + episode.index)
  answer = question.answer if episode.index == 0 else "It is not known."
  messages = [{"role": "user", "content": question.text}, *searches, assistant(answer)]
  ids, mask = episode.chat.encode_conversation(messages)
  turns, before = [], False
  for token, written in zip(ids, mask, strict=True):
    if written and not before:
      turns.append([])
    if written:
      turns[-1].append(token)
    before = written
  return turns


def main():
  mode, file, *arguments = sys.argv[1:]
  known = {}
  if mode == "replay":
    for path in pathlib.Path(file).parent.glob(pathlib.Path(file).name + ".*"):
      for line in path.read_text().splitlines():
        record = json.loads(line)
        known[tuple(record["key"])] = record["turns"]

  def forced_turn(episode):
    number = sum(turn["role"] == "assistant" for turn in episode.turns)
    key = tuple(int(k) for k in episode.key)
    turns = known[key] if mode == "replay" else script(episode)
    return turns[number] if number < len(turns) else []

  end_turn = Episode.end_turn

  def recording(episode, tokens, logps, stopped):
    end_turn(episode, tokens, logps, stopped)
    key = tuple(int(k) for k in episode.key)
    if sum(turn["role"] == "assistant" for turn in episode.turns) == 1:
      known[key] = []
    known[key].append(list(tokens))
    if episode.finished:
      with open(f"{file}.{jax.process_index()}", "a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, "turns": known[key]}) + "\n")

  Episode.forced_turn = forced_turn
  if mode == "record":
    Episode.end_turn = recording
  run_main(train_grpo.main, "GRPO, recorded or replayed", argv=arguments)


if __name__ == "__main__":
  main()
