"""The atlas: real facts as short linked pages, each with its atomic statements.  HOST.

A page's sentences carry links, "[Guiyang](/city/1809461)", and marked literals,
"[1,171,633](/value/population)", so that a renamed world (worlds.py) can replace every name and
every number. A page of one's own corpus may have plain text.

Spec     1.3 (statements and chains), 3 (what search_web serves).
Source   built by build_atlas.py; licences in assets/ATTRIBUTION.
"""

import collections
import dataclasses
import gzip
import hashlib
import json
import pathlib
import re
import unicodedata
import zlib
from typing import NamedTuple

ASSETS = pathlib.Path(__file__).parent / "assets"
LINK = re.compile(r"\[([^\]]*)\]\(/([a-z_]+)/([^)\s]*)\)")
ATLAS_HOST = "atlas.example"
PAGE_EXAMPLE = '{"title": "...", "text": "..."}'
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
SPLITS = (("sft", 40), ("rl", 35), ("heldout", 25))

# One sentence a relation, each naming its relation in the words an agent would search for.
TEMPLATES = {
  "capital": "The capital of {s} is {o}.",
  "currency": "The currency of {s} is the {o}.",
  "continent": "{s} lies in the continent of {o}.",
  "calling_code": "The calling code of {s} is {o}.",
  "largest_city": "The largest city of {s} is {o}.",
  "language": "The main language of {s} is {o}.",
  "borders": "{s} borders {o}.",
  "population": "{s} has a population of {o}.",
  "area": "The area of {s} is {o}.",
  "internet_code": "The internet code of {s} is {o}.",
  "highest_point": "The highest point of {s} is {o}.",
  "lowest_point": "The lowest point of {s} is {o}.",
  "independence": "The independence day of {s} is {o}.",
  "government_type": "The government type of {s} is {o}.",
  "national_anthem": "The national anthem of {s} is {o}.",
  "country": "{s} lies in the country of {o}.",
  "region": "{s} lies in the region of {o}.",
  "time_zone": "The time zone of {s} is {o}.",
  "only_airport": "{s} is served by the airport {o}.",
  "region_type": "{s} is a {o}.",
  "city": "{s} serves the city of {o}.",
  "full_name": "The full name of {s} is {o}.",
  "elevation": "The elevation of {s} is {o}.",
  "currency_code": "The code of the {s} is {o}.",
  "language_code": "The code of {s} is {o}.",
  "number_of_countries": "The number of countries with {s} is {o}.",
  "largest_country": "The largest country of {s} is {o}.",
  "symbol": "The symbol of {s} is {o}.",
  "atomic_number": "The atomic number of {s} is {o}.",
  "period": "The period of {s} is {o}.",
  "series": "The series of {s} is {o}.",
  "discovery_year": "The discovery year of {s} is {o}.",
}


class Entity(NamedTuple):
  """A thing with a page; `country` is the ISO code that decides its split, None if shared."""

  id: str
  name: str
  kind: str
  country: str | None


class Statement(NamedTuple):
  """One atomic fact: `object` is an entity id, or None where `literal` holds the value."""

  subject: str
  relation: str
  object: str | None
  literal: str | None
  sentence: int


class Page(NamedTuple):
  """A titled page of marked-up sentences and the statements they make."""

  id: str
  title: str
  sentences: tuple[str, ...]
  statements: tuple[Statement, ...]
  url: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Atlas:
  """Every entity and page by id, and names that belong to no entity."""

  entities: dict[str, Entity]
  pages: dict[str, Page]
  names_bank: tuple[str, ...]

  def statements(self, subject: str, relation: str) -> list[Statement]:
    """The statements of one relation on one page; empty where there are none."""
    page = self.pages.get(subject)
    return [] if page is None else [s for s in page.statements if s.relation == relation]

  def tail_name(self, statement: Statement) -> str:
    """The real name, or the literal, at the end of a statement."""
    return statement.literal if statement.object is None else self.entities[statement.object].name

  def split_of(self, entity_id: str) -> str:
    """"sft", "rl" or "heldout" by the entity's country; "shared" where it has no single one."""
    entity = self.entities[entity_id]
    if entity.country is None:
      return "shared"
    return split_of_country(entity.country)

  def ambiguous_names(self) -> frozenset[str]:
    """Folded names that more than one entity of any kind bears."""
    counts = collections.Counter(fold(entity.name) for entity in self.entities.values())
    return frozenset(name for name, count in counts.items() if count > 1)


def split_of_country(code: str) -> str:
  """Places a country in a split by a hash of its code: 40 % sft, 35 % rl, 25 % held out."""
  point = int(hashlib.sha256(f"split/{code}".encode()).hexdigest(), 16) % 100
  for split, share in SPLITS:
    if point < share:
      return split
    point -= share
  raise AssertionError("the shares of SPLITS must sum to 100")


def fold(text: str) -> str:
  """Lower case, no accents, words of letters and digits with single spaces between."""
  text = text if text.isascii() else "".join(
    c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
  return " ".join(re.findall(r"\w+", text.casefold().replace("_", " ")))


def sentence_of(kind: str, relation: str, subject: str, tail: str) -> str:
  """The sentence that states `relation` of `subject`; `kind` is the subject's."""
  del kind  # every relation reads the same for every kind that has it
  return TEMPLATES[relation].format(s=subject, o=tail)


def plain(sentence: str) -> str:
  """The sentence as a reader sees it, without the markup."""
  return LINK.sub(lambda match: match[1], sentence)


def split_sentences(text: str) -> tuple[str, ...]:
  """Splits plain text after a full stop, question or exclamation mark and a space."""
  return tuple(part for part in re.split(r"(?<=[.!?])\s+(?=[\[\"A-Z0-9])", text.strip()) if part)


def read_pages(path: str | pathlib.Path) -> tuple[list[dict], list[str]]:
  """Reads a JSONL corpus (.gz or plain): page rows and the bank of free names, if any.

  A row has "title" and either "sentences" or "text"; "id" or "url", "country" and "statements"
  are optional. Without "id" the URL is the id, less its scheme, and less the host where that is the
  atlas's own. Half a surrogate pair, which no UTF-8 reply can hold, becomes U+FFFD.

  Raises:
    ValueError: no such file, an empty one, or a malformed line, which is named by its number.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f"corpus {path}: no such file; expected a JSONL file of pages, each line "
                     f"like {PAGE_EXAMPLE}")
  rows, bank, seen, number = [], [], {}, 0
  opened = gzip.open if path.suffix == ".gz" else open
  try:
    with opened(path, "rb") as lines:
      for number, line in enumerate(lines, 1):
        if not line.strip():
          continue
        row = _page_row(line, f"corpus {path}, line {number}", number)
        if "names_bank" in row:
          bank += row["names_bank"]
        elif row["id"] in seen:
          raise ValueError(f"corpus {path}, line {number}: page {row['id']!r} stands in line "
                           f"{seen[row['id']]} already; give each page its own \"id\" or \"url\"")
        else:
          seen[row["id"]] = number
          rows.append(row)
  except (EOFError, OSError, zlib.error) as error:
    raise ValueError(f"corpus {path}: not readable after line {number} ({error})") from error
  if not rows:
    raise ValueError(f"corpus {path}: no pages; expected one a line, like {PAGE_EXAMPLE}")
  return rows, bank


def _page_row(line: bytes, where: str, number: int) -> dict:
  try:
    row = json.loads(line.decode("utf-8"))
    if b"\\ud" in line.lower():
      row = json.loads(LONE_SURROGATE.sub("\ufffd", json.dumps(row, ensure_ascii=False)))
  except UnicodeDecodeError as error:
    raise ValueError(f"{where}: not UTF-8 ({error.reason} at byte {error.start + 1})") from error
  except json.JSONDecodeError as error:
    raise ValueError(f"{where}: not JSON ({error.msg} at column {error.colno}); expected one page "
                     f"a line, like {PAGE_EXAMPLE}") from error
  except RecursionError as error:
    raise ValueError(f"{where}: not a page (JSON nested too deeply)") from error
  except ValueError as error:  # A number of thousands of digits.
    raise ValueError(f"{where}: not JSON that can be read ({error})") from error
  if not isinstance(row, dict):
    raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}; write one page "
                     f"a line, like {PAGE_EXAMPLE}")
  if "names_bank" in row:
    if not _all_text(row["names_bank"]):
      raise ValueError(f"{where}: expected \"names_bank\" as a list of strings; write it in a line "
                       "of its own, like {\"names_bank\": [\"Abelo\", \"Brisk\"]}")
    return row
  if not isinstance(row.get("title"), str) or not row["title"].strip():
    raise ValueError(f"{where}: expected a non-empty string \"title\", the page's name, "
                     f"{_what_stands(row, 'title')}; write the page like {PAGE_EXAMPLE}")
  if "sentences" not in row and isinstance(row.get("text"), str):
    row["sentences"] = split_sentences(row["text"])
  elif not _all_text(row.get("sentences")):
    found = _what_stands(row, "sentences" if "sentences" in row else "text")
    raise ValueError(f"{where}: expected \"text\" as a string or \"sentences\" as a list of "
                     f"strings, {found}; write the page like {PAGE_EXAMPLE}")
  given = row.get("id", row.get("url", f"page/{number}"))
  if not isinstance(given, str) or not given:
    raise ValueError(f"{where}: expected \"id\" or \"url\" as a string, got {given!r}")
  for key in ("url", "country"):
    if not isinstance(row.get(key, ""), str) and (key == "url" or row[key] is not None):
      raise ValueError(f"{where}: expected \"{key}\" as a string, got {row[key]!r}")
  address = given.partition("://")[2] or given
  row["id"] = address.removeprefix(ATLAS_HOST + "/") or address
  if not isinstance(row.setdefault("statements", []), list):
    raise ValueError(f"{where}: expected \"statements\" as a list, got {row['statements']!r}")
  for statement in row["statements"]:
    if not (isinstance(statement, dict) and isinstance(statement.get("p"), str)
            and isinstance(statement.get("v", statement.get("o")), str)
            and type(statement.get("sent")) is int
            and statement["sent"] in range(len(row["sentences"]))):
      raise ValueError(f"{where}: expected a statement with \"p\", \"o\" or \"v\" as text and "
                       f"\"sent\" below {len(row['sentences'])}, got {statement!r}")
  return row


def _what_stands(row: dict, key: str) -> str:
  if key in row:
    return f"got {_short(repr(row[key]))}"
  return "which the line lacks" + (f": it has {_short(', '.join(row))}" if row else ": it is empty")


def _short(text: str) -> str:
  return text if len(text) <= 60 else text[:60] + "…"


def _all_text(value) -> bool:
  return isinstance(value, list) and all(isinstance(one, str) for one in value)


def load_atlas(path: str | pathlib.Path | None = None, *, for_questions: bool = False) -> Atlas:
  """Loads the packaged atlas, or another file in its format.

  Args:
    path: None is the packaged atlas.
    for_questions: questions will be made from the pages, not only searches answered.

  Raises:
    ValueError: the file is missing or malformed, the line named; it lacks what questions are made
      from.
  """
  rows, bank = read_pages(path or ASSETS / "atlas.jsonl.gz")
  entities, pages = {}, {}
  for row in rows:
    page = row["id"]
    entities[page] = Entity(page, row["title"], page.split("/")[0], row.get("country"))
    pages[page] = Page(page, row["title"], tuple(row["sentences"]),
                       tuple(_statement(page, s) for s in row["statements"]),
                       row.get("url", f"https://{ATLAS_HOST}/{page}"))
  if for_questions and not any(page.statements for page in pages.values()):
    raise ValueError(
      f"corpus {path}: none of its {len(pages)} pages has \"statements\", which questions are made "
      "from; add them to the lines, like \"statements\": [{\"p\": \"capital\", \"o\": \"city/1\", "
      "\"sent\": 0}], or leave the corpus out to train on the packaged atlas")
  if for_questions and len(set(bank)) < 2:
    raise ValueError(
      f"corpus {path}: no line has a \"names_bank\", names that no page bears, under which "
      "training asks its questions; add a line like {\"names_bank\": [\"Abelo\", \"Brisk\"]} with "
      "more names than there are pages")
  return Atlas(entities, pages, tuple(bank))


def _statement(subject: str, row: dict) -> Statement:
  """A statement; an "o" that is no id, such as "77,006", is a literal like a "v"."""
  literal = row.get("v")
  if literal is None and not re.fullmatch(r"[a-z_]+/\S+", row["o"]):
    literal = row["o"]
  return Statement(subject, row["p"], row["o"] if literal is None else None, literal, row["sent"])
