"""Numbers, units, dates and pairs as the matcher reads them."""

import math

import pytest

from searchjax.reward.quantities import Clock, Date, Number, Pair, convert, find_quantities

one = lambda text: find_quantities(text)[0]


@pytest.mark.parametrize("text, value, unit", [
    ("120k", 120e3, None), ("$222 million", 222e6, "USD"), ("US$222,000,000", 222e6, "USD"),
    ("$5m", 5e6, "USD"), ("5m", 5, "meter"), ("3.5万", 35e3, None), ("45 per cent", 45, "%"),
    ("6,300 kilometres", 6300, "kilometer"), ("seven", 7, None), ("twenty-three", 23, None),
    ("one hundred and five", 105, None), ("two million", 2e6, None), ("thirty-seventh", 37, None),
    ("1 hour, 10 minutes and 39 seconds", 4239, "second"), ("-40 °C", -40, "degC"),
    ("1,234.5", 1234.5, None)])
def test_numbers(text, value, unit):
  number = one(text)
  assert isinstance(number, Number) and number.value == value and number.unit == unit
  assert len(find_quantities(text)) == 1


@pytest.mark.parametrize("text, date", [
    ("20 June 1837", (1837, 6, 20)), ("June 20th, 1837", (1837, 6, 20)),
    ("1837-06-20", (1837, 6, 20)), ("20th of June 1837", (1837, 6, 20)),
    ("03/04/2024", (2024, 3, 4)), ("13/04/2024", (2024, 4, 13)),
    ("20.06.1837", (1837, 6, 20)), ("2024年3月4日", (2024, 3, 4)), ("Sept. 2022", (2022, 9, None)),
    ("June 20", (None, 6, 20)), ("44 BC", (-44, None, None)), ("AD 70", (70, None, None))])
def test_dates(text, date):
  found = one(text)
  assert isinstance(found, Date) and (found.year, found.month, found.day) == date


def test_what_is_no_date_or_number():
  assert not any(isinstance(q, Date) and q.day for q in find_quantities("30 February 2001"))
  assert find_quantities("the 1990s") == [] and find_quantities("Titan IIIE, B52s, 3E") == []


@pytest.mark.parametrize("text, ends", [
    ("1903-1904", (1903, 1904)), ("1903 to 1904", (1903, 1904)), ("1903-04", (1903, 1904)),
    ("between 4 and 5", (4, 5)), ("8-1", (8, 1)), ("from 10 until 15", (10, 15))])
def test_pairs_keep_their_order(text, ends):
  pair = one(text)
  assert isinstance(pair, Pair) and (pair.first.value, pair.second.value) == ends


def test_bounds_and_significant_figures():
  assert [one(t).bound for t in ("more than 50k", "about 50k", "under 50k", "50k")] == [
      "above", "about", "below", ""]
  assert one("120k").step == 1e4 and one("124k").step == 1e3 and one("1.20 million").step == 1e4
  assert one("12,000").exact and not one("12k").exact


def test_clocks_and_conversion():
  assert one("1:10:39") == Clock((1, 10, 39), "", 0, 7)
  assert one("9:05 pm").half == "p"
  assert math.isclose(convert(3915, "mile", "kilometer"), 6300.58, rel_tol=1e-5)
  assert math.isclose(convert(20, "degC", "degF"), 68, rel_tol=1e-9)
  assert math.isnan(convert(1, "mile", "kilogram")) and math.isnan(convert(1, "USD", "EUR"))
