"""The tiny policy's tokenizer: byte-level BPE with Qwen3.5's markup.  HOST.

A name has one spelling wherever it stands. Text is first cut into segments that depend only on
the characters themselves: capitalised words, single capitals (codes are spelt out), lower-case
words, single digits, punctuation, and *glue*, the small words of relation sentences with the
spaces around them (" of ", " is the "). No token crosses a segment, so "Lyon", "of Lyon is" and
"Lyon." hold the same ids for Lyon. Whole segments that are in the vocabulary are one token: the
glue, and the lower-case words of the wordings.

The vocabulary is 256 bytes and merges learned on names (512 entries together), then glue and
wording words, then the added tokens: Qwen3.5's control tokens and runs of its markup, so that
the fixed text of a turn costs one or two ids. Names of the atlas are never single tokens.

Why      names are copied piece by piece, so a name must be cut alike wherever it stands.
"""

import argparse
import collections
import itertools
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

LONGEST_PIECE = 4  # bytes of a merged piece: unseen names then break into pieces as seen ones do
PACKAGED = pathlib.Path(__file__).parent / "assets" / "tokenizer.json"

CONTROL = (
  "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
  "<tool_response>", "</tool_response>", "<think>", "</think>",
)
_ANSWER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
MARKUP = (
  "<|im_start|>system\n",
  "<|im_start|>user\n",
  "<|im_start|>assistant\n",
  "<|im_start|>assistant\n<think>\n",
  "\n<|im_start|>user\n",
  "\n<|im_start|>user\n<tool_response>\n",
  "\n</tool_response>\n<tool_response>\n",
  "\n</tool_response><|im_end|>\n" + _ANSWER,
  "<|im_end|>\n" + _ANSWER,
  "\n" + _ANSWER,
  "<tool_call>\n<function=search_web>\n<parameter=query>\n",
  "\n</parameter>\n</function>\n</tool_call>",
  "\n</think>\n\n",
)
GLUE = (
  " is the ", " is a ", " is ", " of the ", " of ", " in the ", " in ", " and ", " has a ",
  " lies in the ", " serves the ", " served by ", " holding the ", " holding ", " with the ",
  " the ", " a ", " to ", " with ", " by ", " or ", "The ", "the ", "What is the ", "What is ",
  "Which ", "In which ", "Name the ", "Name ", "Tell me the ", "Tell me ", "Write ", "Say ",
  "Its ", "It is ", "a ", "A ",
  "of ", ": ", ", ", "No results.", "Search failed: ", "Error: ", "You may search at most ",
  " times.", " time.", "Reply with the word ", "Reply with ", "I do not know", "I could not find ",
  "The answer is ",
)


def pre_tokenizer_pattern(glue: Sequence[str]) -> str:
  """The segments of text as one regular expression: every character falls into exactly one."""
  longest_first = sorted(glue, key=lambda piece: (-len(piece), piece))
  wholes = "|".join(
    (r"(?<![\p{L}\p{M}])" if piece[0].isalpha() else "")
    + re.escape(piece).replace(r"\ ", " ")
    for piece in longest_first
  )
  return (
    rf"{wholes}|\. (?=\p{{Lu}})|\p{{Lu}}[\p{{Ll}}\p{{M}}]+|"
    rf"[\p{{Ll}}\p{{M}}\p{{Lo}}\p{{Lt}}\p{{Lm}}]+"
    r"|\p{Lu}|\p{N}|[^\p{L}\p{M}\p{N}]"
  )


def train_tokenizer(
  texts: Iterable[str],
  vocab_size: int,
  *,
  words: Collection[str] = (),
  glue: Sequence[str] = GLUE,
  blocked: Collection[str] = (),
) -> tokenizers.Tokenizer:
  """Trains merges on texts and adds whole words, glue and markup.

  Args:
    texts: names, one a string; a text counts as often as it stands here.
    vocab_size: bytes and merges together; at least 256.
    words: lower-case words that are one token each.
    glue: small phrases with the spaces around them, one token each.
    blocked: strings that must not become one token, nor be built upon.

  Returns:
    A tokenizer whose ids are: bytes, merges, whole segments, added tokens.

  Raises:
    ValueError: vocab_size below 256.
  """
  if vocab_size < 256:
    raise ValueError(f"vocab_size must be at least the 256 bytes, got {vocab_size}")
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  cut = pre_tokenizers.Sequence([
    pre_tokenizers.Split(tokenizers.Regex(pre_tokenizer_pattern(glue)), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ])
  learner = tokenizers.Tokenizer(models.BPE())
  learner.pre_tokenizer = cut
  learner.train_from_iterator(
    texts,
    trainers.BpeTrainer(
      vocab_size=vocab_size + 512, initial_alphabet=alphabet, show_progress=False,
      min_frequency=2, max_token_length=LONGEST_PIECE,
    ),
  )
  blocked = {_bytes_as_text(text) for text in blocked}
  entries = list(alphabet)
  known = set(entries)
  merges = []
  for left, right in json.loads(learner.to_str())["model"]["merges"]:
    whole = left + right
    if len(entries) == vocab_size:
      break
    if " " in _text_of(whole) or whole in blocked or whole in known:
      continue  # glue is whole already
    if left in known and right in known:
      entries.append(whole)
      known.add(whole)
      merges.append((left, right))
  for piece in [*glue, ". ", *sorted(words)]:
    piece = _bytes_as_text(piece)
    if piece not in known:
      entries.append(piece)
      known.add(piece)
  tokenizer = tokenizers.Tokenizer(models.BPE(
    vocab={entry: i for i, entry in enumerate(entries)}, merges=merges, ignore_merges=True
  ))
  tokenizer.pre_tokenizer = cut
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in CONTROL])
  tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in MARKUP])
  return tokenizer


def load_tokenizer(path: str | pathlib.Path | None = None) -> tokenizers.Tokenizer:
  """Loads a tokenizer.json: the packaged one if no path is given.

  Args:
    path: the file, or the Hugging Face folder that holds it. Truncation and padding that the file
      asks for are turned off: nothing is cut unseen.

  Raises:
    ValueError: no such file, a folder without one, or not a tokenizer.
  """
  path = pathlib.Path(path or PACKAGED)
  if path.is_dir():
    if not (path / "tokenizer.json").is_file():
      raise ValueError(
        f"tokenizer {path}: the folder holds no tokenizer.json; save the fast tokenizer there "
        "(save_pretrained)"
      )
    path = path / "tokenizer.json"
  if not path.is_file():
    raise ValueError(f"tokenizer {path}: no such file; expected a tokenizer.json")
  try:
    tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
  except Exception as error:  # the library raises bare Exception: named here as bad input
    raise ValueError(f"tokenizer {path}: not a tokenizer.json ({error})") from error
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return tokenizer


def stored_template(path: str | pathlib.Path) -> str | None:
  """The chat template that stands beside a tokenizer.json, if any.

  Args:
    path: as for `load_tokenizer`. Looked for in chat_template.jinja, then tokenizer_config.json.

  Raises:
    ValueError: tokenizer_config.json is not JSON.
  """
  path = pathlib.Path(path)
  folder = path if path.is_dir() else path.parent
  template, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
  if template.is_file():
    return template.read_text(encoding="utf-8")
  if not config.is_file():
    return None
  try:
    stored = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
  except ValueError as error:
    raise ValueError(f"{config}: not JSON ({error})") from error
  if isinstance(stored, list):  # several, by name
    stored = {entry["name"]: entry["template"] for entry in stored}.get("default")
  return stored


def wording_words(wordings: Iterable[str], *, least: int = 1) -> list[str]:
  """The lower-case words of two letters or more that stand in at least `least` wordings."""
  counts = collections.Counter(
    word for text in wordings
    for word in set(re.findall(r"(?<![^\W\d_])[a-z]{2,}(?![^\W\d_])", text))
  )
  return sorted(word for word, count in counts.items() if count >= least)


def _bytes_as_text(text: str) -> str:
  """The byte-level spelling of text, as the vocabulary writes it."""
  return "".join(
    piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    .pre_tokenize_str(text)
  )


def _text_of(entry: str) -> str:
  return decoders.ByteLevel().decode([entry])


def atlas_training_text() -> tuple[list[str], list[str], list[str], list[str]]:
  """Names to learn merges on, wordings, compounds of them, and names that may not be one token.

  Held-out entities lend no name. Every name of four letters or more is barred from being a token.
  """
  # Imported here: only training needs the atlas and the wordings.
  from searchjax.data import demonstrations, pairs, questions, rubrics
  from searchjax.search.atlas import TEMPLATES, load_atlas
  atlas = load_atlas()
  learn_from = list(atlas.names_bank)
  barred = []
  for entity in atlas.entities.values():
    if entity.kind != "airport" and len(entity.name) > 3:
      barred.append(entity.name)
    if atlas.split_of(entity.id) != "heldout" and entity.kind != "airport":
      # Countries and currencies stand in every chain, towns in few: weigh them so.
      learn_from += [entity.name] * (1 if entity.kind == "city" else 4)
  wordings = [
    *TEMPLATES.values(), *itertools.chain(*questions.PHRASES.values()),
    *questions.QUERY_WORDS.values(), *questions.FRAMES, *questions.START.values(),
    *pairs.FILLER, pairs.UNKNOWN, *demonstrations.EMPTY_QUERIES, *demonstrations.FAILURES,
    demonstrations.budget_statement(1), demonstrations.BUDGET_USED_UP,
  ]
  wordings = [re.sub(r"\{\w+\}", " ", text) for text in wordings]
  compounds = {
    match for text in wordings for match in re.findall(
      r"\b(?:largest|calling|internet|highest|lowest|only|main|phone|time|atomic|capital) "
      r"(?:city|country|code|point|airport|language|zone|number)\b", text)
  }
  return learn_from, [*wordings, *rubrics.WORDINGS], sorted(compounds), barred


def main(arguments: Sequence[str] | None = None) -> None:
  """Trains the packaged tokenizer on the packaged atlas."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument("--out", default=str(PACKAGED), help="where tokenizer.json is written")
  parser.add_argument("--entries", type=int, default=512, help="bytes and merges together")
  options = parser.parse_args(arguments)
  names, wordings, compounds, barred = atlas_training_text()
  tokenizer = train_tokenizer(
    names, options.entries, words=wording_words(wordings), glue=(*GLUE, *compounds),
    blocked=barred,
  )
  pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
  pathlib.Path(options.out).write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
  print(f"{options.out}: {tokenizer.get_vocab_size()} ids, {options.entries} bytes and merges")


if __name__ == "__main__":
  main()
