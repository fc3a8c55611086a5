"""The rule-based judge behind r_base: whether a final answer matches the expected one.  HOST.

  judge_answer(prediction, gold, question) -> CORRECT | INCORRECT | NOT_ATTEMPTED          (SPEC 2)

A wrong answer taken for right teaches the policy to give it; a right one missed costs one rollout.
So every rule here prefers to miss: a name inside a longer name, two candidates for one answer, a
bare year for a day, one of two items, a number of another scale or unit are all INCORRECT. No
verdict depends on case, on closing punctuation, on Markdown or on citation marks.

Source   own rules; the last-significant-figure rule and the three verdicts follow the SimpleQA
         graders. Nothing is read or written; HOST, since it works on text.
"""

import enum
import re

from searchjax.reward import answer_words as words
from searchjax.reward.answer_lists import list_items, says_all
from searchjax.reward.answer_names import says
from searchjax.reward.answer_quantities import Match, match_quantity, sole_quantity
from searchjax.reward.answer_sentences import polarity, says_statement
from searchjax.reward.answer_text import clean, identical, plain, sentences, tokenize


class Verdict(enum.Enum):
  """Outcome of a comparison."""
  CORRECT = "CORRECT"
  INCORRECT = "INCORRECT"
  NOT_ATTEMPTED = "NOT_ATTEMPTED"


def judge_answer(
    prediction: str, gold: str | list, question: str = ""
) -> Verdict:
  """Compares a final answer with what was expected.

  Args:
    prediction: the final answer as the user reads it: a name, a sentence, several; any language.
    gold: the expected answer: a string; one with aliases joined by "<|answer_split|>"; or a list
      of aliases, nested lists included. A parenthesised note in it ("also acceptable: petroleum")
      adds aliases.
    question: what was asked. It says which part of an answer may be left out ("in which year"),
      whether a person, a quantity or yes and no is expected, and which numbers are only repeated.

  Returns:
    CORRECT: the answer states one of the aliases, hedged or not, and nothing that contradicts it.
    NOT_ATTEMPTED: no answer, a refusal, or a bound that leaves the answer open ("more than 50k").
    INCORRECT: everything else, half an answer included.

  Raises:
    ValueError: gold holds no text.
  """
  aliases = _aliases(gold)
  if not aliases:
    raise ValueError(f"gold: expected at least one answer that is not empty; got {gold!r}")
  text = clean(prediction)
  if any(identical(text, alias) for alias in aliases):
    return Verdict.CORRECT
  claim = _claim(text)
  if not claim:
    return Verdict.NOT_ATTEMPTED
  question = clean(question)
  best = max(_match(claim, alias, question, aliases) for alias in aliases)
  return {Match.YES: Verdict.CORRECT, Match.VAGUE: Verdict.NOT_ATTEMPTED,
          Match.NO: Verdict.INCORRECT}[best]


def _aliases(gold: str | list | tuple) -> list[str]:
  """Every string that would do: nested lists flattened, joined aliases split, notes read."""
  if isinstance(gold, (list, tuple)):
    return [alias for part in gold for alias in _aliases(part)]
  out = []
  for alias in str(gold).split("<|answer_split|>"):
    alias = clean(alias)
    note = r"\s*\((?:[^()]|\([^()]*\))*\)"
    head = re.sub(note, lambda found: _read_note(found.group(), out), alias)
    head = words.HONORIFICS.sub("", head.strip()).strip(" .")
    out += [text for text in (head, alias.strip(" .")) if text]
  return list(dict.fromkeys(out))


def _read_note(note: str, aliases: list[str]) -> str:
  """Takes a grader's note out of an answer, and its aliases in; other parentheses stay."""
  inside = note.strip()[1:-1]
  if re.fullmatch(r"[A-Z][A-Z0-9.]{1,7}", inside):                            # an acronym
    aliases.append(inside)
    return ""
  if not words.NOTE.search(inside):
    return note
  quoted = re.findall(r"(?<!\w)['\"]([^'\"]+)['\"](?!\w)", inside)
  bare = re.match(r"\s*(?:or|also(?: accept(?:able)?)?:?|aka|a\.k\.a\.|formerly|also known as)"
                  r"\s+([\w .-]+)$", inside)
  aliases += [text for text in quoted + ([bare.group(1)] if bare else []) if text.strip()]
  return ""


def _claim(text: str) -> str:
  """What a prediction asserts, refusals taken out; an announced answer alone; "" for nothing."""
  *_, marker = [None, *words.MARKER.finditer(text)]
  if marker and tokenize(text[marker.end():]) and not _refused_before(text, marker.start()):
    text = sentences(text[marker.end():])[0]
  text = words.ATTRIBUTION.sub(" ", words.DOUBT.sub(" ", text))
  *_, turn = [None, *words.TURN.finditer(text)]
  text = text[turn.end():] if turn else text
  if not tokenize(text):
    return ""
  if not words.ABSTENTION.search(text):
    return text
  kept = []
  for sentence in sentences(text):
    pieces = [piece for piece in words.CONTRAST.split(sentence) if piece and tokenize(piece)]
    refused = [bool(words.ABSTENTION.search(piece)) for piece in pieces]
    for number, piece in enumerate(pieces):
      beside = any(refused) and (not any(refused[:number]) or len(tokenize(piece)) <= 6)
      if not refused[number] and (beside or words.CLAIM.search(piece)):
        kept.append(piece)
  return ". ".join(kept)


def _refused_before(text: str, at: int) -> bool:
  """"I do not know if the answer is yes": what the answer is stands in a refusal."""
  *_, opening = ["", *sentences(text[:at])]
  inside = text[:at].rstrip().endswith(opening.rstrip()) and opening.rstrip()[-1:] not in ".!?:"
  return inside and bool(words.ABSTENTION.search(opening) or words.DOUBT.search(opening))


def _match(claim: str, alias: str, question: str, aliases: list[str]) -> Match:
  bare = plain(alias)
  if bare in words.YES or bare in words.NO:
    return Match.YES if polarity(claim, question) is (bare in words.YES) else Match.NO
  if words.SECOND_THOUGHT.search(claim):
    return Match.NO
  quantity = sole_quantity(alias, question)
  if quantity is not None:
    return match_quantity(claim, quantity, question)
  items = list_items(alias, question)
  if says(claim, alias, question, aliases, whole=len(items) > 1):
    return Match.YES
  if len(items) > 1:
    return Match.YES if says_all(claim, items, question) else Match.NO
  if len(tokenize(alias)) > (4 if words.YES_NO_QUESTION.search(question) else 7):
    return Match.YES if says_statement(claim, alias, question) else Match.NO
  return Match.NO
