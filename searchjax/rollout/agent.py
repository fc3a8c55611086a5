"""What every stage needs to let a policy search: tokenizer, tool, engine, limits.  HOST."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from searchjax.data.chat import ChatFormat, template_style
from searchjax.data.tokenizer import load_tokenizer, stored_template
from searchjax.dist import checkpoint
from searchjax.dist.mesh import make_mesh
from searchjax.dist.reshard import make_reshard
from searchjax.dist.sharding import LAYOUTS, MESH_AXES
from searchjax.model.config import ModelConfig, model_config
from searchjax.model.parallel import Division, divide, make_whole
from searchjax.model.params import ParamSpec, param_specs
from searchjax.rollout.engine import EngineGroup
from searchjax.rollout.episode import Episode, Limits
from searchjax.rollout.group import collect_groups, process_part, prompt_messages
from searchjax.rollout.remote import RemoteEngine
from searchjax.search.connect import open_search
from searchjax.search.tool import SEARCH_WEB, SearchTool


@dataclasses.dataclass
class Agent:
  """Attributes:
    model: sizes of the policy; None where a server has it.
    chat: the text format.
    tool: the live search tool.
    engine: runs conversations.
    limits: of one rollout.
    tools: schemas printed in the prompt, or None.
  """

  model: ModelConfig | None
  chat: ChatFormat
  tool: SearchTool
  engine: EngineGroup | RemoteEngine
  limits: Limits
  tools: list[dict] | None

  def collect(
    self, questions: Sequence[Any], params, *, budget: int | None = None, **settings
  ) -> list[list[Episode]]:
    """`collect_groups` with this agent's parts; `budget` states and enforces a cap on calls.

    Raises:
      ValueError: no further search can succeed: a key was refused, a quota is used up.
    """
    limits = self.limits
    if budget is not None:
      limits = dataclasses.replace(limits, calls=budget)
    groups = collect_groups(
      questions, params, engine=self.engine, chat=self.chat, tool=self.tool, limits=limits,
      tools=self.tools, stated_budget=budget is not None, **settings,
    )
    self.tool.raise_if_stopped()
    return groups


@contextlib.contextmanager
def open_agent(
  config: Any, model: ModelConfig | None, chat: ChatFormat, *, record_routing: bool = False
) -> Iterator[Agent]:
  """Opens what config.search describes, a local server where it names no other, and an engine.

  Args:
    config: with sections `search`, `limits`, `engine` and `mesh`; with `inference`, if it names a
      server, which is then the engine.
    model: of the engine in this process; None with a server.
    record_routing: keep the experts chosen for every token, for their replay in training.

  Raises:
    ValueError: the service cannot be reached or used as the config says, or a server is named
      where there is a policy to train.
  """
  inference = config.get("inference", {})
  if inference.get("url") and model is not None:
    raise ValueError(
      "training samples from its own policy, and no server can be given each step's weights yet: "
      "leave inference.url empty; it is for searchjax.evaluate"
    )
  search, limits = config.search, Limits(**config.limits)
  with contextlib.ExitStack() as stack:
    tool = stack.enter_context(open_search(search))
    tools = [SEARCH_WEB] if search.tools_in_prompt else None
    if inference.get("url"):
      # Servers that write the prompt themselves have to be told of the tool.
      server = RemoteEngine(chat=chat, length=limits.tokens, tools=[SEARCH_WEB], **inference)
      yield Agent(None, chat, tool, stack.enter_context(server), limits, tools)
      return
    settings = dict(config.engine)
    settings.pop("layout")
    division = engine_division(config, model)
    if division is None:
      for name in ("lanes", "pool"):
        settings[name] = process_part(name, settings[name])
    engine = EngineGroup(
      model, devices=jax.local_devices(), division=division,
      length=limits.tokens, stop_ids=chat.stop_ids, record_routing=record_routing, **settings,
    )
    yield Agent(model, chat, tool, engine, limits, tools)


def prompt_has_room(
  config: Any, chat: ChatFormat, text: str, budget: int | None = None
) -> bool:
  """Whether a question's prompt leaves room for an answer in `limits.tokens`.

  Args:
    config: with sections `search` and `limits`.
    budget: a cap on calls that the prompt states; None states none.
  """
  tools = [SEARCH_WEB] if config.search.tools_in_prompt else None
  prompt = chat.encode_prompt(prompt_messages(text, budget), tools=tools)
  return Limits(**config.limits).leave_room(len(prompt))


def load_chat(tokenizer: str, style: str = "", **settings) -> ChatFormat:
  """The text format over a tokenizer.

  Args:
    tokenizer: a tokenizer.json or the Hugging Face folder that holds one; "" is the packaged one.
    style: of ChatFormat; "" is that of the chat template in the tokenizer's folder, or without one
      ChatFormat's own choice by the vocabulary.
    settings: `thinking` and `preserve_thinking` of ChatFormat. They and `style` are a config's
      optional section `chat`.

  Raises:
    ValueError: not a tokenizer, or a chat template that no style writes.
  """
  loaded = load_tokenizer(tokenizer or None)
  template = stored_template(tokenizer) if tokenizer else None
  if template and not style:
    style = template_style(template, tokenizer)
  return ChatFormat(loaded, style=style or None, **settings)


def new_model(section: Mapping, chat: ChatFormat, compute: Mapping) -> ModelConfig:
  """The model of a config's `model` section, a preset with overrides, for this tokenizer.

  Args:
    compute: fields of ModelConfig that say how it is computed, not what it is.
  """
  fields = dict(section) | dict(compute)
  return model_config(fields.pop("preset"), real_vocab_size=chat.vocab_size, **fields)


def new_division(section: Mapping, model: ModelConfig, *, value_head: bool = False) -> Division:
  """How a config's `mesh` section divides a model over all devices."""
  sizes = dict(section)
  layout = sizes.pop("layout")
  return divide(make_mesh(**sizes), layout, param_specs(model, value_head=value_head))


def engine_division(
  config: Any, model: ModelConfig, mesh: Mesh | None = None
) -> Division | None:
  """How `engine.layout` divides the policy for rollouts; None is a whole copy on every device.

  Args:
    mesh: None makes the config's.
  """
  layout = config.engine.layout
  if layout == "replicated":
    return None
  if mesh is None:
    mesh = make_mesh(**{axis: config.mesh[axis] for axis in MESH_AXES})
  return divide(mesh, layout, param_specs(model))


def make_engine_params(config: Any, model: ModelConfig, division: Division) -> Callable:
  """Jits `params -> params`, from the training layout to what the engine reads.

  Args:
    division: of the parameters in training.
  """
  rollouts = engine_division(config, model, division.mesh)
  if rollouts is None:
    return make_whole(division)
  old, new = (LAYOUTS[d.parallel.layout] for d in (division, rollouts))
  return make_reshard(division.mesh, param_specs(model), old, new)


def save_policy(folder, step: int, params: dict, model: ModelConfig) -> None:
  """Writes a finished stage's parameters, alone, with the sizes they belong to."""
  directory = f"{folder}/policy"
  if checkpoint.latest_step(directory) != step:
    checkpoint.save(directory, step, params, {"model": dataclasses.asdict(model)}, keep=1)


def load_policy(
  folder, section: Mapping, *, compute: Mapping, value_head: bool = False
) -> tuple[dict, ModelConfig, Division]:
  """Parameters and model that `save_policy` wrote, divided as a config's `mesh` section says.

  Args:
    compute: as for `new_model`.
    value_head: the stage is a preference model.

  Raises:
    ValueError: the stage has not finished.
  """
  directory = f"{folder}/policy"
  model = ModelConfig(**checkpoint.read_meta(directory)["model"] | dict(compute))
  division = new_division(section, model, value_head=value_head)
  template = jax.tree.map(
    lambda spec, part: jax.ShapeDtypeStruct(
      spec.shape, spec.dtype, sharding=NamedSharding(division.mesh, part)
    ),
    param_specs(model, value_head=value_head), division.specs,
    is_leaf=lambda x: isinstance(x, ParamSpec),
  )
  return checkpoint.restore(directory, template)[0], model, division
