"""What transformers computes for a case, in float32 or wholly in float64.  Needs torch.

transformers casts to float32 in many places. For the float64 run its modelling modules see a
`torch` whose float32 is float64, so that nothing is rounded and the result can anchor a tolerance.
"""

import contextlib
import types
from unittest import mock

import numpy as np
import torch
from parity import cases
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe


class _DoubleTorch(types.ModuleType):
  """torch, except that float32 means float64."""

  float = float32 = torch.float64

  def __getattr__(self, name):
    return getattr(torch, name)


@contextlib.contextmanager
def _in_double():
  fake = _DoubleTorch("torch")
  with contextlib.ExitStack() as stack:
    for module in (modeling_qwen3_5_moe, modeling_qwen3_moe):
      stack.enter_context(mock.patch.object(module, "torch", fake))
    stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
    yield


def run(case: str, *, double: bool) -> dict:
  """One forward and backward pass of the mean next-token loss.

  Returns:
    "hidden" [L+1 1 T D]: the embedding, the residual stream after every layer but the last, and the
    final-normed states; "last": the stream after the last layer; "logits", "router" [L T E] (router
    logits), "balance" (the Switch term over all layers) and "gradients" by Hugging Face name.
  """
  hf = cases.CASES[case]
  dtype = torch.float64 if double else torch.float32
  torch.manual_seed(0)
  context = _in_double() if double else contextlib.nullcontext()
  with context:
    config = AutoConfig.for_model(**{k: v for k, v in hf.items() if k != "dtype"})
    config._attn_implementation = config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    weights = {n: torch.tensor(a).to(dtype) for n, a in cases.weights(case).items()}
    model.load_state_dict(weights, strict=True)
    rotary = model.model.rotary_emb
    if double:
      half = rotary.inv_freq.shape[0]
      exponent = torch.arange(half, dtype=torch.float64) / half
      rotary.inv_freq = hf["rope_parameters"]["rope_theta"] ** -exponent
    model.train()  # no dropout anywhere; gradients need no other mode
    kept = {}
    last = model.model.layers[-1].register_forward_hook(
      lambda _m, _i, out: kept.update(last=out[0] if isinstance(out, tuple) else out)
    )
    ids = torch.tensor(cases.tokens(case), dtype=torch.long)
    out = model(ids, output_hidden_states=True, output_router_logits=True, use_cache=False)
    logp = torch.log_softmax(out.logits[:, :-1], -1)
    loss = -logp.gather(-1, ids[:, 1:, None]).mean()
    loss.backward()
    last.remove()
  array = lambda t: t.detach().numpy()
  module = modeling_qwen3_moe if case == "qwen3_moe" else modeling_qwen3_5_moe
  balance = module.load_balancing_loss_func(
    tuple(r.reshape(-1, r.shape[-1]) for r in out.router_logits), hf["num_experts"],
    hf["num_experts_per_tok"],
  )  # fmt: skip
  return dict(
    hidden=np.stack([array(h) for h in out.hidden_states]),
    last=array(kept["last"]),
    logits=array(out.logits),
    router=np.stack([array(r).reshape(cases.LENGTH, -1) for r in out.router_logits]),
    balance=np.asarray(balance.item()),
    loss=np.asarray(loss.item()),
    gradients={n: array(p.grad) for n, p in model.named_parameters()},
  )
