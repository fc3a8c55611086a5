"""Both formats against the published chat templates, byte for byte; FAULTS T10, T11, M5, T4, T5, T6.

The stored texts are what `chat_fixtures/make_rendered.py` got from the templates; where trl is
installed the templates themselves are asked again, and about random conversations too.
"""

import json
import random

import pytest
from chat_fixtures import make_rendered

from searchjax.data.chat import ChatFormat, template_style
from searchjax.data.markup import Part, checked_name, markup
from searchjax.data.tokenizer import load_tokenizer

STORED = json.loads(make_rendered.STORED.read_text(encoding="utf-8"))["conversations"]
CASES = [(name, style) for name, case in STORED.items() for style in case
         if style not in ("messages", "tools")]


@pytest.fixture(scope="module")
def formats():
  tokenizer = load_tokenizer()
  return {style: ChatFormat(tokenizer, style=style, preserve_thinking=False)
          for style in ("qwen3_5", "qwen3_instruct")}


@pytest.fixture(scope="module")
def templates():
  folder = make_rendered.template_folder()
  if folder is None:
    pytest.skip("trl, which ships the published chat templates, is not installed")
  return {style: (folder / name).read_text(encoding="utf-8")
          for style, name in make_rendered.TEMPLATES.items()}


def text_of(chat, messages, tools, **settings):
  """Our text, or None for a conversation that is refused."""
  try:
    return chat.decode(chat.encode_prompt(messages, tools=tools, **settings))
  except ValueError:
    return None


@pytest.mark.parametrize("name,style", CASES)
def test_the_text_is_the_published_templates(formats, name, style):
  chat, case = formats[style], STORED[name]
  entry = case[style]
  plain = text_of(chat, case["messages"], case["tools"], add_generation_prompt=False)
  assert plain == entry["text"]
  if plain is None:
    return
  prompt = text_of(chat, case["messages"], case["tools"], enable_thinking=False)
  assert prompt == plain + entry["opening_plain"]
  if style == "qwen3_5":
    prompt = text_of(chat, case["messages"], case["tools"], enable_thinking=True)
    assert prompt == plain + entry["opening_thinking"]
  kept = text_of(chat, case["messages"], case["tools"], add_generation_prompt=False,
                 preserve_thinking=True)
  if "preserved" in entry:
    assert kept == entry["preserved"] != plain


def test_the_stored_texts_cover_what_they_should():
  assert len(STORED) >= 25 and len(CASES) >= 90
  refused = {name for name, case in STORED.items() if case["qwen3_5"]["text"] is None}
  assert refused == {"no user", "only a wrapped response", "second system"}  # FAULTS T11
  assert sum("preserved" in case["qwen3_5"] for case in STORED.values()) >= 5


def test_m5_tools_stand_in_the_prompt(formats):
  for name, style in CASES:
    case = STORED[name]
    if case["tools"] and case[style]["text"] is not None:
      for schema in case["tools"]:
        assert json.dumps(schema, ensure_ascii=False) in case[style]["text"]


@pytest.mark.parametrize("style", ["qwen3_5", "qwen3_instruct"])
def test_t10_arguments_as_text_and_as_an_object_are_the_same_call(formats, style):
  chat = formats[style]
  arguments = {"query": 'ä "x"', "n": [1, {"k": None}], "b": True}
  texts = set()
  for given in (arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False),
                json.dumps(arguments, indent=2)):
    call = {"function": {"name": "search_web", "arguments": given}}
    texts.add(text_of(chat, [make_rendered.user("q"), make_rendered.says(""),
                             make_rendered.user("r"), {"role": "assistant", "tool_calls": [call]}],
                      None))
  assert len(texts) == 1 and None not in texts
  # Encoded a second time, the arguments would be one string.
  assert json.dumps(json.dumps(arguments)) not in texts.pop()


@pytest.mark.parametrize("style", ["qwen3_5", "qwen3_instruct"])
def test_the_stored_texts_are_still_the_templates(templates, style):
  for name, case in STORED.items():
    if style in case:
      text = make_rendered.render(templates[style], style, case["messages"], case["tools"])
      assert text == case[style]["text"], name


WORDS = ("a", "Ä", "北京", " ", "\n", "\n\n", "<think>", "</think>", "<tool_call>", "{", "\t", "'",
         "<tool_response>", "</tool_response>", "<|im_end|>", "\u00a0", "?", "😀", '"', "\\", "0")


def random_conversation(draw):
  text = lambda: "".join(draw.choices(WORDS, k=draw.randrange(6)))
  value = lambda: draw.choice([
    text(), draw.randrange(9), draw.random(), True, False, None, [], [text(), 1, None],
    {text(): [text()]}])
  messages = [{"role": "system", "content": text()}] if draw.random() < 0.5 else []
  messages.append({"role": "user", "content": text() + "x"})
  for _ in range(draw.randrange(7)):
    role = draw.choice(("user", "assistant", "assistant", "tool"))
    message = {"role": role, "content": draw.choice([text(), text(), None])}
    if role == "user":
      message["content"] = draw.choice([text(), f"<tool_response>{text()}</tool_response>"])
    if role == "assistant":
      if draw.random() < 0.5:
        message["reasoning_content"] = draw.choice([text(), "", None])
      if draw.random() < 0.5:
        message["tool_calls"] = [
          {"function": {"name": "f", "arguments": {k: value() for k in draw.sample("abc", 2)}}}
          for _ in range(draw.randrange(1, 4))]
    messages.append(message)
  return messages, draw.choice([None, [make_rendered.ODD]])


@pytest.mark.parametrize("style", ["qwen3_5", "qwen3_instruct"])
def test_random_conversations_have_the_templates_text(formats, templates, style):
  draw = random.Random(11)
  for _ in range(400):
    messages, tools = random_conversation(draw)
    settings = {"add_generation_prompt": draw.random() < 0.5}
    if style == "qwen3_5":
      settings["enable_thinking"] = draw.random() < 0.5
    expected = make_rendered.render(templates[style], style, messages, tools, **settings)
    assert text_of(formats[style], messages, tools, **settings) == expected, messages


def test_published_templates_are_told_apart(templates):
  folder = make_rendered.template_folder()
  known = {"qwen3_5_think": "qwen3_5", "qwen3_5_nothink": "qwen3_5",
           "qwen3_instruct_2507": "qwen3_instruct"}
  others = ("qwen2_5", "qwen2_5_vl", "qwen3", "qwen3_vl", "qwen3_6", "qwen3_8", "gemma3")
  for name in (*known, *others):
    template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
    if name in known:
      assert template_style(template, name) == known[name]
    else:
      with pytest.raises(ValueError, match=f"{name}: its chat template is neither"):
        template_style(template, name)


@pytest.mark.parametrize("style", ["qwen3_5", "qwen3_instruct"])
def test_ids_are_those_of_apply_chat_template(formats, templates, style):
  from transformers import PreTrainedTokenizerFast
  fast = PreTrainedTokenizerFast(tokenizer_object=load_tokenizer())
  fast.chat_template = templates[style]
  chat = ChatFormat(fast, style=style, preserve_thinking=False)
  for name in ("parallel calls, several results", "thinking, tools and a second query", "unicode"):
    case = STORED[name]
    for settings in ({"enable_thinking": False}, {"enable_thinking": style == "qwen3_5"}):
      wanted = fast.apply_chat_template(
        case["messages"], tools=case["tools"], add_generation_prompt=True, return_dict=False,
        **settings)
      ids = chat.encode_prompt(case["messages"], tools=case["tools"], **settings)
      assert chat.decode(ids) == fast.decode(wanted) and ids == wanted, name


def test_names_that_would_break_out_of_markup_are_refused():
  assert checked_name("search_web", "tool") == "search_web"
  for name in ("", "a b", "x>\n<|im_end|>", "<", 'a"', "a\\", "a\n"):
    with pytest.raises(ValueError, match="expected a name without"):
      checked_name(name, "parameter")
  assert markup("x") == Part("x", True) and not Part("x").markup
