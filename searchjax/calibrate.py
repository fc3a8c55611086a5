"""Rubric chats from conversations: rubrics written, answers judged, both ends dropped.  HOST.

python -m searchjax.calibrate --config configs/calibrate.py --workdir runs/rubrics/seed
  --config.conversations=FILE.jsonl, and for each of writer, policy and judge its url and model

FILE.jsonl holds {"id", "messages": [{"role", "content"}, …]} a line. WORKDIR/chats.jsonl holds what
is kept, {"id", "text", "reference", "rubrics": [{"kind", "arguments"}]}; WORKDIR/report.json what
became of the rest. Section: SPEC 1.3 (pass@4 calibration).
"""

import collections
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from searchjax.data.rows import Account, FieldError, Row, find, read_each
from searchjax.data.rubric_writer import write_rubrics
from searchjax.data.rubrics import RubricChat
from searchjax.data.synthesis.endpoint import Endpoint, EndpointFailure
from searchjax.data.synthesis.journal import Journal, is_text
from searchjax.dist.checks import check_config
from searchjax.dist.run_log import write_json, write_jsonl
from searchjax.dist.settings import run_main
from searchjax.reward.calibration import calibrate
from searchjax.reward.judge import open_judge
from searchjax.reward.rubric import check_rubrics
from searchjax.reward.total import base_rewards


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  account = Account()
  conversations = list(read_each(config.conversations, account, read_conversation))
  if not conversations:
    first = f": {account.problems[0]}" if account.problems else ""
    raise ValueError(
      f"conversations={config.conversations}: none to write rubrics for, {account.summary()}{first}"
    )
  failures: collections.Counter[str] = collections.Counter()
  judging = dict(config.judge)
  judging["cache"] = judging["cache"] or f"{workdir}/judge"
  with (
    Endpoint(**config.writer) as writer,
    Endpoint(**config.policy, temperature=config.temperature) as policy,
    open_judge(judging) as judge, Journal(workdir / "replies.jsonl", is_text) as journal,
  ):
    chats = write_rubrics(
      conversations, lambda prompts: ask_once(writer, prompts, journal), failures,
      lambda answer, rubric: check_rubrics(answer, [rubric])[0],
    )
    if not chats:
      raise ValueError(
        f"no rubrics came of {len(conversations)} conversations: "
        + ", ".join(f"{n} {why}" for why, n in failures.most_common(3))
      )
    messages = dict(conversations)
    asked = [chat for chat in chats for _ in range(config.samples)]
    replies = ask_once(policy, [written_out(messages[chat.id]) for chat in asked], journal)
    answers = list(zip(asked, replies, strict=True))
    given = [pair for pair in answers if not isinstance(pair[1], EndpointFailure)]
    scores = iter(base_rewards(given, judge))
  rewards = np.array(
    [np.nan if isinstance(reply, EndpointFailure) else next(scores) for _, reply in answers],
    np.float32).reshape(len(chats), config.samples)
  kept, report = calibrate(rewards, unscored_share=config.unscored_share)
  report |= {
    "conversations": account.rows, "malformed": list(map(str, account.problems)),
    "refused": dict(failures.most_common()), "judge": dict(judge.counts) if judge else {},
  }
  write_jsonl(workdir / "chats.jsonl", map(record, (chats[i] for i in kept)))
  write_json(workdir / "report.json", report)
  print(
    f"{report['kept']} of {report['chats']} rubric chats kept; none passed {report['none_pass']}, "
    f"all passed {report['all_pass']}, unscored {report['unscored']}: {workdir / 'report.json'}"
  )


def ask_once(
  endpoint: Endpoint, prompts: Sequence[str], journal: Journal
) -> list[str | EndpointFailure]:
  """The replies in order; one that the journal has is not asked for again, a failure is."""
  times: collections.Counter[str] = collections.Counter()
  keys = []
  for prompt in prompts:
    times[prompt] += 1  # a prompt that is asked for four samples has four replies
    about = (endpoint.url, endpoint.model, endpoint.temperature, times[prompt], prompt)
    keys.append(hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest())
  failed: dict[str, EndpointFailure] = {}
  fresh = [pair for pair in zip(keys, prompts, strict=True) if pair[0] not in journal.kept]
  size = 4 * endpoint.connections
  for some in (fresh[start : start + size] for start in range(0, len(fresh), size)):
    for (key, _), reply in zip(some, endpoint.ask_all([p for _, p in some]), strict=True):
      if isinstance(reply, EndpointFailure):
        failed[key] = reply
      else:
        journal.add(key, reply)
    journal.flush()
  return [failed[key] if key in failed else journal.kept[key] for key in keys]


def read_conversation(row: Row) -> tuple[str, list[dict[str, str]]]:
  """(id, messages) of a row.

  Raises:
    FieldError: what is wrong with it.
  """
  turns = find(row.fields, "messages")
  if not isinstance(turns, list) or not turns or not all(
      isinstance(turn, dict) and turn.get("role") in ("system", "user", "assistant")
      and isinstance(turn.get("content"), str) for turn in turns):
    raise FieldError("messages", 'expected [{"role", "content"}, …]')
  if turns[-1]["role"] != "user":
    raise FieldError("messages", "the last message is not the user's")
  return str(find(row.fields, "id")), turns


def written_out(turns: list[dict[str, str]]) -> str:
  """A conversation as one prompt; a single message as it is."""
  if len(turns) == 1:
    return turns[0]["content"]
  return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns) + "\n\nassistant:"


def record(chat: RubricChat) -> dict[str, Any]:
  """A chat as it is stored."""
  rubrics = [{"kind": r.kind, "arguments": dict(r.arguments)} for r in chat.rubrics]
  return {"id": chat.id, "text": chat.text, "reference": chat.reference, "rubrics": rubrics}


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
