"""Renamed worlds: the atlas under other names, a consistent permutation by seed.  HOST.

A world maps every entity to a fresh name and every literal to a fresh value. Names lie in three
fixed banks (places, currencies, airport codes) of prime size P, and entity i of a bank bears

  name_i = bank[(a i + b) mod P],    a, b drawn from the seed, a != 0,

so that names are distinct, two entities' names are independent of each other, and building,
naming and un-naming cost no pass over the atlas. No bank holds a name of any atlas entity, nor
a name one word of which is one.

Spec     1.3 (question worlds); the tiny recipe trains on renamed worlds and evaluates on real ones.
Letters  P bank size, a, b the world's two numbers, i entity index.
"""

import functools
import hashlib
import random
import re

from searchjax.search.atlas import LINK, Atlas, TEMPLATES, fold, plain

PLACES_BANK_SIZE = 60_000
CURRENCIES_BANK_SIZE = 5_000
VALUES_BANK_SIZE = 5_000
UNITS = ("Dollar", "Franc", "Peso", "Dinar", "Pound", "Rupee", "Crown", "Mark", "Shilling", "Real")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December")
RESERVED = frozenset(
  word for template in TEMPLATES.values() for word in fold(template.format(s="", o="")).split()
) | frozenset("served served by where which what code calling airport".split())


class NameBanks:
  """The fixed banks of one atlas, and which entity has which index in them."""

  def __init__(self, atlas: Atlas):
    forbidden = {fold(entity.name) for entity in atlas.entities.values()}
    places, currencies, values = _place_names(atlas.names_bank, forbidden)
    codes = _airport_codes(forbidden)
    self.banks = {"place": places, "currency": currencies, "airport": codes}
    self.values = values
    self.slot: dict[str, tuple[str, int]] = {}
    self.members: dict[str, list[str]] = {bank: [] for bank in self.banks}
    for entity in atlas.entities.values():
      bank = entity.kind if entity.kind in self.banks else "place"
      self.slot[entity.id] = bank, len(self.members[bank])
      self.members[bank].append(entity.id)
    for bank, members in self.members.items():
      if len(members) > len(self.banks[bank]):
        raise ValueError(
          f"names for a renamed world: {len(members)} entities of bank {bank!r}, but only "
          f"{len(self.banks[bank])} free names; give the corpus a larger \"names_bank\"")
    self.place_of = {fold(name): (bank, i) for bank, names in self.banks.items()
                     for i, name in enumerate(names)}
    self.longest = max((key.count(" ") + 1 for key in self.place_of), default=1)


@functools.lru_cache(maxsize=4)
def name_banks(atlas: Atlas) -> NameBanks:
  """The banks of an atlas, built once an atlas (an Atlas hashes by identity)."""
  return NameBanks(atlas)


class World:
  """The atlas under the names of one seed; seed None is the real world.

  Args:
    atlas: facts and the bank of free names.
    seed: any integer; equal seeds give equal worlds on every machine. None: the real names.
  """

  def __init__(self, atlas: Atlas, seed: int | None):
    self.atlas, self.seed = atlas, seed
    if seed is None:
      return
    self._banks = name_banks(atlas)
    self._affine = {}
    for bank, names in self._banks.banks.items():
      digest = hashlib.blake2b(f"{seed}/{bank}".encode(), digest_size=16).digest()
      size = max(2, len(names))
      a = 1 + int.from_bytes(digest[:8], "little") % (size - 1)
      b = int.from_bytes(digest[8:], "little") % size
      self._affine[bank] = a, b, pow(a, -1, size), size

  def name(self, entity_id: str) -> str:
    """The name of an entity in this world."""
    if self.seed is None:
      return self.atlas.entities[entity_id].name
    bank, i = self._banks.slot[entity_id]
    a, b, _, size = self._affine[bank]
    return self._banks.banks[bank][(a * i + b) % size]

  def value(self, relation: str, literal: str) -> str:
    """A literal in this world: the same shape, other digits and letters, consistently."""
    return literal if self.seed is None else self._fresh_value(relation, literal)

  def tail(self, statement) -> str:
    """The name or literal at the end of a statement, in this world."""
    if statement.object is None:
      return self.value(statement.relation, statement.literal)
    return self.name(statement.object)

  def render(self, sentence: str) -> str:
    """A marked-up sentence as plain text under this world's names."""
    if self.seed is None:
      return plain(sentence)
    return LINK.sub(self._render_link, sentence)

  def unrename(self, text: str) -> str:
    """Text with this world's names replaced by the real ones, longest name first."""
    if self.seed is None:
      return text
    place_of, longest = self._banks.place_of, self._banks.longest
    spans = [(m.start(), m.end(), fold(m[0])) for m in re.finditer(r"\w+", text)]
    pieces, done, i = [], 0, 0
    while i < len(spans):
      for length in range(min(longest, len(spans) - i), 0, -1):
        place = place_of.get(" ".join(span[2] for span in spans[i:i + length]))
        entity = place and self._entity_at(*place)
        if entity:
          pieces += [text[done:spans[i][0]], self.atlas.entities[entity].name]
          done = spans[i + length - 1][1]
          i += length - 1
          break
      i += 1
    return "".join(pieces) + text[done:]

  def _entity_at(self, bank: str, place: int) -> str | None:
    _, b, inverse, size = self._affine[bank]
    i = (place - b) * inverse % size
    members = self._banks.members[bank]
    return members[i] if i < len(members) else None

  def _render_link(self, match: re.Match) -> str:
    shown, kind, key = match.groups()
    if kind == "value":
      return self._fresh_value(key, shown)
    entity = f"{kind}/{key}"
    return self.name(entity) if entity in self._banks.slot else shown

  def _fresh_value(self, relation: str, literal: str) -> str:
    draw = random.Random(f"{self.seed}/{relation}/{literal}")
    if re.fullmatch(r"\d{1,2} [A-Z][a-z]+ \d{4}", literal):
      return f"{draw.randint(1, 28)} {draw.choice(MONTHS)} {draw.randint(1800, 1999)}"
    if re.search(r"\d", literal):
      return re.sub(r"\d+", lambda m: _fresh_digits(m[0], draw), literal)
    if re.fullmatch(r"\W*[A-Za-z]{1,3}", literal):
      return re.sub(r"[A-Za-z]", lambda m: _fresh_letter(m[0], draw), literal)
    return draw.choice(self._banks.values) if self._banks.values else literal


def _fresh_digits(digits: str, draw: random.Random) -> str:
  first = "123456789" if len(digits) > 1 or digits != "0" else "0"
  return draw.choice(first) + "".join(draw.choice("0123456789") for _ in digits[1:])


def _fresh_letter(letter: str, draw: random.Random) -> str:
  fresh = draw.choice("abcdefghijklmnopqrstuvwxyz")
  return fresh.upper() if letter.isupper() else fresh


def _place_names(bank, forbidden: set[str]) -> tuple[list[str], list[str], list[str]]:
  """Splits town names and their recombined halves into places, currencies and values."""
  draw = random.Random(0)
  words_forbidden = {name for name in forbidden if " " not in name} | RESERVED
  names: dict[str, str] = {}

  def add(name: str):
    key = fold(name)
    if (key and key not in forbidden and key not in names
        and words_forbidden.isdisjoint(key.split())):
      names[key] = name

  for name in bank:
    add(name)
  singles = [name for name in names.values() if name.isalpha()]
  wanted = PLACES_BANK_SIZE + CURRENCIES_BANK_SIZE + VALUES_BANK_SIZE
  for _ in range(2 * wanted if singles else 0):
    if len(names) >= wanted:
      break
    left, right = draw.choice(singles), draw.choice(singles)
    name = left[:max(2, len(left) // 2)] + right[len(right) // 2:]
    if draw.random() < 0.15:
      name = f"{name} {draw.choice(singles)}"
    if 4 <= len(name) <= 18 and not re.search(r"(.)\1\1", name.casefold()):
      add(name)
  mixed = list(names.values())
  draw.shuffle(mixed)
  few = min(len(mixed) // 8, CURRENCIES_BANK_SIZE)
  money = [f"{name} {draw.choice(UNITS)}" if draw.random() < 0.6 else name
           for name in mixed[:few]]
  money = [name for name in money if fold(name) not in forbidden]
  return (_prime_length(mixed[few + min(few, VALUES_BANK_SIZE):]), _prime_length(money),
          mixed[few:few + min(few, VALUES_BANK_SIZE)])


def _airport_codes(forbidden: set[str]) -> list[str]:
  """Three-letter codes that no atlas entity has and no template word spells, shuffled."""
  letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
  taken = forbidden | RESERVED
  codes = [a + b + c for a in letters for b in letters for c in letters
           if (a + b + c).casefold() not in taken]
  random.Random(1).shuffle(codes)
  return _prime_length(codes)


def _prime_length(names: list[str]) -> list[str]:
  """Drops names from the end until their number is prime (or below two)."""
  size = len(names)
  while size > 2 and any(size % d == 0 for d in range(2, int(size ** 0.5) + 1)):
    size -= 1
  return names[:size]
