"""What the recipe cards of pods share, by stage.  PURE.

A card (`configs/grpo_397b.py`) says which model, on which mesh, with which batch, and what it
changes of the stage's recipe here. A row a chip: batches, lanes of the rollout engine and
preference pairs are as many as the mesh has devices.

Letters  none.
Source   none.
"""

from ml_collections import ConfigDict

from searchjax.data.demonstrations import RATES
from searchjax.search.options import SEARCH

CHIPS_A_HOST = 4


def sft(size: str, preset: str, *, fsdp: int, expert: int) -> ConfigDict:
  """Demonstrations of searching, 16,384 tokens a chip and step.

  Args:
    size: names the model's runs: `runs/SIZE/start` is where it starts.
    preset: of `searchjax.model.config`.
    fsdp, expert: sizes of the mesh's axes.
  """
  c = _pod(size, fsdp, expert)
  c.steps, c.checkpoint_every, c.keep_checkpoints = 400, 50, 2
  c.init = c.tokenizer
  c.model = ConfigDict(dict(preset=preset))
  c.batch = ConfigDict(dict(rows=fsdp * expert, length=16384))
  c.optimizer = _adamw(peak=1e-5, warmup=20, decay="cosine", weight_decay=0.1)
  c.data = ConfigDict(
    dict(
      questions=20000, chats=8000, hops=(1, 2, 3),
      weights=ConfigDict(dict(tool_use=0.7, preference=0.3)), rates=ConfigDict(RATES),
    )
  )
  c.gate = ConfigDict(dict(every=50, questions=64))
  _add_rollouts(c, lanes=fsdp * expert)
  return c


def preference(size: str, preset: str, *, fsdp: int, expert: int) -> ConfigDict:
  """A pair a chip, each in both orders, 4,096 tokens long; args as for `sft`."""
  c = _pod(size, fsdp, expert)
  c.steps, c.rows, c.pair_length, c.holdout_every = 500, fsdp * expert, 4096, 50
  c.corpus = ""
  c.model = ConfigDict(dict(preset=preset))
  c.optimizer = _adamw(peak=1e-5, warmup=20, decay="cosine", weight_decay=0.1)
  c.data = ConfigDict(
    dict(
      questions=20000, chats=4000, hops=(1, 2, 3),
      pairs=ConfigDict(dict(per_question=3, noise=0.0, annotators=3, agreement=1.0)),
    )
  )
  return c


def grpo(size: str, preset: str, *, fsdp: int, expert: int) -> ConfigDict:
  """Gated reward, anchored penalties, token-level ratios; 16 rollouts a question.

  A question for every four chips and step; 16,384 tokens a chip and batch. Args as for `sft`.
  """
  devices = fsdp * expert
  c = _pod(size, fsdp, expert)
  c.steps, c.checkpoint_every, c.keep_checkpoints = 200, 10, 2
  c.questions_per_step, c.group_size, c.references = devices // 4, 16, 4
  c.temperature, c.mismatch, c.truncate_at, c.invalid_share = 1.0, "token_is", 0.0, 0.2
  c.rows, c.lengths = devices, (16384,)
  c.model = ConfigDict(dict(preset=preset))
  c.preference = ConfigDict(dict(preset="qwen3.5-35b-a3b"))
  c.optimizer = _adamw(peak=1e-6, warmup=5, decay="constant", weight_decay=0.0)
  c.advantage = ConfigDict(dict(divide_by_std=True, eps=1e-6))
  c.reward = ConfigDict(
    dict(
      aggregation="gated", tool_penalty="anchored", length_penalty="anchored",
      alpha_win=1.0, alpha_lose=0.5, beta_lose=0.1, lambda_tool=0.3, lambda_len=0.2,
      per_call=1.0, per_token=0.001,
    )
  )
  c.scorer = ConfigDict(dict(rows=devices, length=4096))
  c.data = ConfigDict(
    dict(questions=12800, chats=1280, hops=(1, 2, 3), rubric_share=0.1, questions_file="")
  )
  _add_rollouts(c, lanes=devices)
  return c


def _pod(size: str, fsdp: int, expert: int) -> ConfigDict:
  """How a run forms and how its step is divided and computed."""
  c = ConfigDict()
  c.seed = 0
  c.tokenizer = f"runs/{size}/start"
  c.mesh = ConfigDict(dict(fsdp=fsdp, expert=expert, context=1, layout="zero3"))
  # A process a host; the run is refused unless so many come together.
  c.distributed = ConfigDict(
    dict(
      coordinator="auto", processes=fsdp * expert // CHIPS_A_HOST, process=-1, form_limit_s=600.0,
      silence_limit_s=60.0, stall_limit_s=3600.0, local_folder="runs",
    )
  )
  c.profile = ConfigDict(dict(first_step=0, steps=0))  # steps above 0: traces in WORKDIR/profile
  c.compute = ConfigDict(
    dict(
      moe_dispatch="ragged", capacity_factor=1.25, attention_implementation="splash",
      deltanet_implementation="pallas", moe_chunk=2048, delta_block=256, remat="parts",
      logprob_chunk=128,
    )
  )
  c.moment_dtype = "float32"
  return c


def _adamw(**values: float | str) -> ConfigDict:
  return ConfigDict(dict(kind="adamw", b2=0.95, clip_norm=1.0) | values)


def _add_rollouts(c: ConfigDict, lanes: int) -> None:
  """The search service, a conversation's limits, and the engine, divided over the mesh."""
  c.search = ConfigDict(SEARCH | dict(connections=64, snippet_chars=600))
  c.limits = ConfigDict(
    dict(calls=5, turn_tokens=8192, tokens=16384, answer_tokens=1024, invalid_share=0.5)
  )
  c.engine = ConfigDict(
    dict(
      layout="decode", lanes=lanes, pool=2 * lanes, feed_rows=32, feed_tokens=512, decode_steps=32,
      top_k=0, top_p=1.0,
    )
  )
