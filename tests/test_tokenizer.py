"""The tiny tokenizer: one spelling a name, no memorised names, short conversations."""

import random
import statistics

import pytest

from searchjax.data.chat import ChatFormat, ToolCall
from searchjax.data.tokenizer import (
  CONTROL, MARKUP, load_tokenizer, main, train_tokenizer, wording_words,
)
from searchjax.search.atlas import load_atlas, sentence_of


@pytest.fixture(scope="module")
def atlas():
  return load_atlas()


@pytest.fixture(scope="module")
def tokenizer():
  return load_tokenizer()


def inside(part, whole):
  return any(whole[i:i + len(part)] == part for i in range(len(whole) - len(part) + 1))


FRAMES = (
  "{}", "The capital of {} is Paris.", "{}: {} lies in the country of {}.", "capital of {}",
  "The capital of France is {}.", "What is the currency of {}?", "currency of the country of {}",
  "{} borders {}.", "Reply with {} and {}, without commas.", "1. {}\n2. {}", "({})",
)


def test_a_name_has_one_spelling_wherever_it_stands(atlas, tokenizer):
  names = random.Random(0).sample(sorted({e.name for e in atlas.entities.values()}), 600)
  names += ["Saint Kitts and Nevis", "Côte d'Ivoire", "Isle of Man", "CDG", "Port-au-Prince"]
  unlike = [
    name for name in names for frame in FRAMES
    if not inside(tokenizer.encode(name).ids, tokenizer.encode(frame.replace("{}", name)).ids)
  ]
  assert len(unlike) <= 0.002 * len(names) * len(FRAMES), unlike[:10]


def test_no_name_of_the_atlas_is_one_token(atlas, tokenizer):
  single = {
    e.name for e in atlas.entities.values()
    if len(e.name) > 3 and len(tokenizer.encode(e.name, add_special_tokens=False).ids) == 1
  }
  assert not single


def test_codes_and_numbers_are_spelt_out(tokenizer):
  assert len(tokenizer.encode("CDG").ids) == 3
  assert len(tokenizer.encode("77006").ids) == 5


def test_every_byte_and_control_token_is_there_once(tokenizer):
  vocabulary = tokenizer.get_vocab()
  assert sorted(vocabulary.values()) == list(range(tokenizer.get_vocab_size()))
  assert tokenizer.get_vocab_size() < 768
  for text in (*CONTROL, *MARKUP):
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 1, text
  for text in ("\x00\x7f", "日本", "\U0001f600", "\t\r\n  "):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def conversation(atlas, hops, draw):
  """A chain from an airport: city, country, currency; the question asks for its end."""
  while True:
    airport = draw.choice([e for e in atlas.entities.values() if e.kind == "airport"])
    names, subject = [airport.name], airport.id
    results = []
    for relation in ("city", "country", "currency")[:hops]:
      found = atlas.statements(subject, relation)
      if not found or found[0].object is None:
        break
      tail = atlas.tail_name(found[0])
      results.append((relation, names[-1], sentence_of("", relation, names[-1], tail)))
      names.append(tail)
      subject = found[0].object
    if len(results) == hops:
      break
  asked = " of the ".join(r for r, _, _ in reversed(results)) + " of " + airport.name
  messages = [{"role": "user", "content": f"What is the {asked}?"}]
  for relation, subject_name, sentence in results:
    call = ToolCall("search_web", {"query": f"{relation} of {subject_name}"})
    messages += [{"role": "assistant", "content": "", "calls": [call]},
                 {"role": "tool", "content": f"{subject_name}: {sentence}"}]
  return [*messages, {"role": "assistant", "content": results[-1][2]}]


def test_conversations_are_short(atlas, tokenizer):
  chat, draw = ChatFormat(tokenizer), random.Random(0)
  for hops, limit in ((1, 90), (2, 125), (3, 160)):
    sizes = [len(chat.encode_conversation(conversation(atlas, hops, draw))[0]) for _ in range(40)]
    assert statistics.mean(sizes) <= limit
  held_out = [e for e in atlas.entities.values() if atlas.split_of(e.id) == "heldout"]
  for kind, limit in (("country", 5.8), ("city", 6.5), ("airport", 3.0)):
    sizes = [len(tokenizer.encode(e.name).ids) for e in held_out if e.kind == kind]
    assert statistics.mean(sizes) <= limit, kind


def test_training_is_deterministic_and_bars_names():
  texts = ["Barcelo", "Barcelo", "Barcelona"] * 20
  one = train_tokenizer(texts, 262, words=["capital"], blocked=["Ba"])
  assert one.to_str() == train_tokenizer(texts, 262, words=["capital"], blocked=["Ba"]).to_str()
  assert len(one.encode("capital").ids) == 1
  assert "Ba" not in one.get_vocab() and not any(
    token.startswith("Ba") for token in one.get_vocab())
  assert wording_words(["The capital of", "a capital"], least=2) == ["capital"]


def test_bad_input_is_named(tmp_path):
  with pytest.raises(ValueError, match="at least the 256 bytes, got 100"):
    train_tokenizer(["a"], 100)
  with pytest.raises(ValueError, match="no such file"):
    load_tokenizer(tmp_path / "none.json")
  (tmp_path / "bad.json").write_text("{")
  with pytest.raises(ValueError, match="not a tokenizer.json"):
    load_tokenizer(tmp_path / "bad.json")


def test_the_packaged_tokenizer_is_what_the_script_makes(tmp_path, tokenizer):
  main(["--out", str(tmp_path / "t.json")])
  assert load_tokenizer(tmp_path / "t.json").get_vocab() == tokenizer.get_vocab()
