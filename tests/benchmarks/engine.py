"""The rollout engine against transformers' generate: `PYTHONPATH=. python tests/benchmarks/engine.py`.

Policies with random weights, on this machine's cores, one after the other in one run. Needs torch
(`pip install -e .[parity]`). `--quick` takes fewer conversations and tokens.

new tokens/s   of all conversations together: prompts of 48 tokens, 64 new ones each, greedy. Of the
               tiny policy, whose 2.4 MB of weights stay in the processor's caches, and of a larger
               one, whose 66 MB do not where those are smaller
gain           of 64 lanes over 8, on all cores as a run has them; of the larger one by its experts,
               which a step reads and a token does not all use; of the tiny one on one device too

The rest is of the tiny policy:

lane use       64 lanes, 1,024 conversations of three turns of 48 tokens, each search takes a second
prefill        tokens that were fed over those that have to be: prompts once a group, responses once
3-turn batch   64 conversations with three tool turns, against prefilling the history every turn
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import tempfile
import threading
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import numpy as np

from searchjax.model import convert
from searchjax.model.config import model_config
from searchjax.model.params import init_params
from searchjax.rollout.agent import save_policy
from searchjax.rollout.engine import EngineGroup

MODEL = model_config("tiny")
LARGER = model_config(
  "tiny", hidden_size=256, num_layers=8, num_query_heads=4, num_experts=16, expert_size=128,
  shared_expert_size=128, delta_key_heads=4, delta_value_heads=8, vocab_size=4096,
  real_vocab_size=4096,
)
EXPERTS = 8, 16, 32, 64
PROMPT, NEW, RESPONSE = 48, 64, 40
TIMES = 10


class Talk:
  """Turns of fixed length; a search between two of them."""

  def __init__(self, prompt, turns, size, clock=None):
    self.key = np.array([0, abs(hash(tuple(prompt))) % 2**31], np.uint32)
    self.prompt, self.routing, self.finished = prompt, [], False
    self.turns, self.size, self.clock = turns, size, clock
    self.said = list(prompt)
    self._wait = []

  def turn_budget(self):
    return self.size

  def forced_turn(self):
    return []

  def end_turn(self, tokens, logps, stopped):
    self.said += tokens
    self.turns -= 1
    self.finished = not self.turns
    if not self.finished and self.clock:
      self._wait = [self.clock.later()]

  def waits_for(self):
    return self._wait

  def next_tokens(self):
    response = [1 + (7 * i + len(self.said)) % (MODEL.vocab_size - 1) for i in range(RESPONSE)]
    self.said += response
    return response


class Clock:
  """Futures that are done some seconds later."""

  def __init__(self, seconds):
    self.seconds, self._due, self._more = seconds, [], threading.Event()
    threading.Thread(target=self._run, daemon=True).start()

  def later(self):
    future = concurrent.futures.Future()
    self._due.append((time.monotonic() + self.seconds, future))
    return future

  def _run(self):
    while True:
      time.sleep(0.005)
      while self._due and self._due[0][0] <= time.monotonic():
        self._due.pop(0)[1].set_result(None)


def prompts(count, seed, length=PROMPT):
  return np.random.default_rng(seed).integers(1, MODEL.vocab_size, (count, length)).tolist()


def make_engine(
  lanes, pool=None, devices=None, length=256, feed_rows=16, decode_steps=8, model=MODEL
):
  return EngineGroup(
    model, devices=devices or jax.local_devices(), lanes=lanes, pool=pool or lanes, length=length,
    feed_rows=feed_rows, feed_tokens=PROMPT, decode_steps=decode_steps,
    stop_ids=(model.vocab_size,),
  )


def timed(run):
  begun = time.perf_counter()
  run()
  return time.perf_counter() - begun


def ours(engine, params, talks, temperature=0.0):
  engine.take_counts()
  seconds = timed(lambda: engine.run(params, talks, temperature=temperature))
  return seconds, engine.take_counts()


def decode_run(params, count, new, devices=None, model=MODEL):
  """A function that runs the conversations once and says how long it took."""
  # No turn ends early here, so the host looks seldom.
  engine = make_engine(
    count, devices=devices, length=PROMPT + new, feed_rows=32, decode_steps=16, model=model
  )
  return lambda: ours(engine, params, [Talk(p, 1, new) for p in prompts(count, 1)])[0]


def generate_run(model, count, new):
  import torch

  ids = torch.tensor(prompts(count, 1))
  settings = dict(
    do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0, use_cache=True
  )
  return lambda: timed(
    lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
  )


def in_turn(runs):
  """The least seconds of each, one after the other, several times; the first one compiles."""
  best = dict.fromkeys(runs, float("inf"))
  for i in range(1 + TIMES):
    for name, run in runs.items():
      seconds = run()
      best[name] = min(best[name], seconds) if i else best[name]
  return best


def load_transformers(params, model):
  import torch
  from transformers import AutoModelForCausalLM

  torch.set_num_threads(os.cpu_count())
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    save_policy(folder / "stage", 1, params, model)
    convert.to_hf(folder / "stage", folder / "hf", report=lambda _: None)
    loaded = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
  return loaded.eval()


def compare(name, model, new):
  """Prints both sides' new tokens/s and the engine's gain; returns the parameters."""
  params = jax.device_put(init_params(jax.random.key(0), model), jax.devices()[0])
  theirs = load_transformers(params, model)
  size = sum(a.size for a in jax.tree.leaves(params)) / 1e6
  print(f"{f'{name} policy, {size:.1f} M parameters':34s} {'engine':>9s} {'transformers':>13s} ratio")
  speeds = {}
  for count in (8, 16, 64):
    best = in_turn({
      "engine": decode_run(params, count, new, model=model),
      "theirs": generate_run(theirs, count, new),
    })
    mine, other = count * new / best["engine"], count * new / best["theirs"]
    speeds[count] = mine
    label = f"new tokens/s, {count} conversations"
    print(f"{label:34s} {mine:9.0f} {other:13.0f} {mine / other:5.1f}", flush=True)
  print(f"gain from 8 to 64 lanes: {speeds[64] / speeds[8]:.1f}", flush=True)
  return params


def gains(model, new):
  """Prints the engine's gain by the number of experts; a token uses as many of them in each."""
  print("gain from 8 to 64 lanes by the larger policy's experts:", end="", flush=True)
  for experts in EXPERTS:
    some = dataclasses.replace(model, num_experts=experts)
    params = jax.device_put(init_params(jax.random.key(0), some), jax.devices()[0])
    best = in_turn({n: decode_run(params, n, new, model=some) for n in (8, 64)})
    print(f" {experts} {8 * best[8] / best[64]:.1f}", end="", flush=True)
  print()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--quick", action="store_true")
  quick = parser.parse_args().quick
  new, conversations = (16, 128) if quick else (NEW, 1024)
  compare("larger", LARGER, new)
  gains(LARGER, new)
  params = compare("tiny", MODEL, new)
  one = jax.devices()[:1]
  best = in_turn({n: decode_run(params, n, new, one) for n in (8, 16, 32, 64)})
  speeds = {n: n * new / seconds for n, seconds in best.items()}
  print("lanes of one device: " + ", ".join(f"{n} {s:.0f}/s" for n, s in speeds.items())
        + f"; gain from 8 to 64: {speeds[64] / speeds[8]:.1f}", flush=True)

  # Turns long enough that searches come back before the pool has run dry.
  engine = make_engine(64, pool=conversations, length=288)
  ours(engine, params, [Talk(p, 1, 8) for p in prompts(64, 2)])  # Compiles.
  clock = Clock(1.0)
  talks = [Talk(p, 3, 48, clock) for p in prompts(conversations, 3)]
  seconds, counts = ours(engine, params, talks)
  print(f"{conversations} conversations, 64 lanes, searches of 1 s: lane use "
        f"{counts.lane_use:.2f}, {counts.decode_tokens / seconds:.0f} new tokens/s, "
        f"{counts.feeds} feeds", flush=True)

  engine = make_engine(64)
  groups = [Talk(p, 4, 16) for p in prompts(8, 4) for _ in range(8)]
  for i, talk in enumerate(groups):
    talk.key = talk.key + np.uint32(i)
  seconds, counts = ours(engine, params, groups, temperature=1.0)
  needed = 8 * (PROMPT - 1) + len(groups) * 3 * (RESPONSE + 1 - 1)
  print(f"8 questions × 8 rollouts of 4 turns: prefilled {counts.prefill_tokens} tokens, needed "
        f"{needed}, ratio {counts.prefill_tokens / needed:.2f}")

  talks = lambda: [Talk(p, 4, 16) for p in prompts(64, 5)]
  ours(engine, params, talks())
  kept, counts = ours(engine, params, talks())
  again, fed = 0.0, 0
  histories = [list(p) for p in prompts(64, 5)]
  for _ in range(4):
    turns = [Talk(h, 1, 16) for h in histories]
    seconds, part = ours(engine, params, turns)
    again, fed = again + seconds, fed + part.prefill_tokens
    for history, turn in zip(histories, turns, strict=True):
      history[:] = turn.said
      history += turn.next_tokens()
  print(f"64 conversations of 3 tool turns: {kept:.2f} s and {counts.prefill_tokens} tokens fed; "
        f"prefilled every turn: {again:.2f} s and {fed} tokens", flush=True)


if __name__ == "__main__":
  main()
