"""searchjax against the stored results of transformers, in one table.

    JAX_PLATFORMS=cpu PYTHONPATH=.:tests python -m parity.measure

prints the table of docs/parity.md. Errors of values are the largest absolute difference over the
reference's root mean square; errors of gradients, per parameter of a layer, the largest difference
over the largest entry.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from parity import cases

from searchjax.model import attention, deltanet, forward, heads, moe
from searchjax.model.hf_config import config_from_hf
from searchjax.model.layers import rms_norm
from searchjax.model.params import unstack_layers

VALUE_TOLERANCE = 3e-4
GRADIENT_TOLERANCE = 1e-3


def load(case: str) -> dict:
  """Stored results: arrays by name, and "gradients" in searchjax's tree."""
  with np.load(cases.HERE / f"{case}.npz") as file:
    stored = {k: file[k] for k in file.files}
  grads = {k.partition(":")[2]: a for k, a in stored.items() if k.startswith("gradient:")}
  stored = {k: a for k, a in stored.items() if not k.startswith("gradient:")}
  return stored | {"gradients": cases.policy_tree(cases.CASES[case], grads)}


def config(case: str, **fields):
  return config_from_hf(cases.CASES[case], **fields)


def params(case: str) -> dict:
  return cases.policy_tree(cases.CASES[case], cases.weights(case))


def rows(case: str) -> tuple:
  """tokens, segment ids and positions of the case's one document."""
  tokens = cases.tokens(case)
  positions = np.arange(cases.LENGTH, dtype=np.int32)[None]
  return tokens, np.ones_like(tokens), positions


def value_error(got, want) -> float:
  want = np.asarray(want, np.float64)
  return float(np.abs(np.asarray(got, np.float64) - want).max() / np.sqrt(np.mean(want**2)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def layer(config, kind: str, mixer: dict, experts: dict, x):
  """One decoder layer and what its router chose, from the pieces that `forward` is made of."""
  T = x.shape[1]
  positions = jnp.arange(T, dtype=jnp.int32)[None]
  norm = functools.partial(rms_norm, eps=config.norm_eps, zero_centred=config.zero_centred_norm)
  h = norm(x, mixer["norm"])
  if kind == "attention":
    x = x + attention.attention(mixer, config, h, positions, jnp.ones_like(positions))
  else:
    x = x + deltanet.deltanet(mixer, config, h, jnp.ones_like(positions))
  y, routing = moe.moe(experts, config, norm(x, experts["norm"]), jnp.ones((1, T), bool))
  return x + y, routing


def layers(case: str, model, tree: dict, stored: dict) -> list[tuple[str, float]]:
  """Error of the residual stream after each layer, every layer fed with our own previous one."""
  x = tree["embed"][cases.tokens(case)]
  out = [("embedding", value_error(x, stored["hidden"][0]))]
  wanted = [*stored["hidden"][1:-1], stored["last"]]
  for i, (weights, want) in enumerate(zip(unstack_layers(tree, model)["layers"], wanted, strict=True)):
    x, _ = layer(model, weights.kind, weights.mixer, weights.moe, x)
    out.append((f"layer {i} ({weights.kind})", value_error(x, want)))
  return out


@functools.partial(jax.jit, static_argnums=0)
def whole(config, tree: dict, tokens, segment_ids, positions):
  """Loss, its gradient, final hidden states, logits and routing of the model's own forward."""

  def loss(tree):
    hidden, routing = forward.forward(tree, config, tokens, segment_ids, positions)
    logp, _ = heads.token_logprobs(tree, config, hidden, tokens)
    return -jnp.mean(logp[:, 1:]), (hidden, routing)

  (value, (hidden, routing)), gradient = jax.value_and_grad(loss, has_aux=True)(tree)
  return value, gradient, hidden, heads.logits(tree, config, hidden), routing


def gradient_errors(case: str, got: dict, want: dict) -> list[tuple[str, float]]:
  """Relative error of every parameter, layer by layer: [(path and layer, error)]."""
  out = []

  def one(path, g, w):
    path = tuple(k.key for k in path)
    lead = {"attention": 1, "moe": 2, "delta": 2}.get(path[0], 0)
    g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
    for index in np.ndindex(g.shape[:lead]):
      error = np.abs(g[index] - w[index]).max() / np.abs(w[index]).max()
      out.append(("/".join(map(str, path + index)), float(error)))

  jax.tree_util.tree_map_with_path(one, got, want)
  return out


def compare(case: str, **fields) -> list[tuple[str, float, float]]:
  """(what, error, tolerance) of one case; `fields` of ModelConfig say how it is computed."""
  model, tree, stored = config(case, **fields), params(case), load(case)
  value, gradient, hidden, logits, routing = whole(model, tree, *rows(case))
  X = model.experts_per_token
  wanted = np.sort(np.argsort(-stored["router"], axis=-1, kind="stable")[..., :X], axis=-1)
  chosen = np.sort(np.asarray(routing.experts)[:, 0], axis=-1)
  out = [(name, e, VALUE_TOLERANCE) for name, e in layers(case, model, tree, stored)]
  out += [
    ("final hidden states", value_error(hidden, stored["hidden"][-1]), VALUE_TOLERANCE),
    ("logits", value_error(logits, stored["logits"]), VALUE_TOLERANCE),
    ("tokens with other experts", float(np.sum(np.any(chosen != wanted, axis=-1))), 0.0),
    ("loss", abs(float(value) / float(stored["loss"]) - 1), VALUE_TOLERANCE),
  ]
  found = gradient_errors(case, gradient, stored["gradients"])
  worst = max(found, key=lambda item: item[1])
  return out + [
    (f"{len(found)} gradients, worst {worst[0]}", worst[1], GRADIENT_TOLERANCE),
  ]


def number(value: float) -> str:
  """One digit."""
  return f"{value:.0e}" if value else "0"


def table(results: dict[str, list]) -> str:
  """Markdown rows of `compare` by case."""
  lines = ["| model | compared | measured maximum | tolerance |", "| --- | --- | --- | --- |"]
  for case, found in results.items():
    for what, error, tolerance in found:
      lines.append(f"| {case} | {what} | {number(error)} | {number(tolerance)} |")
  return "\n".join(lines)


def main() -> None:
  print(table({case: compare(case) for case in cases.CASES}))


if __name__ == "__main__":
  main()
