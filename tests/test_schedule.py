"""The engine's schedule without a device: shared prompts, slots, lanes; nothing lost or stuck."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchjax.rollout.schedule import Sampling, Schedule, dealt, shared_prompts

GREEDY = Sampling(0.0)
STOP = 7


class Talker:
  """Takes `turns` turns of `size` tokens; each response has two tokens."""

  def __init__(self, prompt, turns=1, size=3):
    self.key, self.prompt, self.routing = np.zeros(2, np.uint32), prompt, []
    self.turns, self.size, self.finished = turns, size, False
    self.said = list(prompt)

  def turn_budget(self):
    return self.size

  def forced_turn(self):
    return []

  def end_turn(self, tokens, logps, stopped):
    self.said += tokens
    self.turns -= 1
    self.finished = self.turns == 0

  def waits_for(self):
    return []

  def next_tokens(self):
    self.said += [50, 51]
    return [50, 51]


class Device:
  """What a pool would hold: the tokens in every slot's state."""

  def __init__(self, schedule, lanes, rows, C, J):
    self.schedule, self.lanes, self.rows, self.C, self.J = schedule, lanes, rows, C, J
    self.state, self.fed, self.forked, self.widest = {}, 0, 0, 0

  def run(self, hold=lambda talk: False):
    s = self.schedule
    for _ in range(10_000):
      if not s.busy:
        return
      for source, target, tokens in s.begin():
        assert len(self.state[source]) == tokens
        self.state[target] = list(self.state[source])
        self.forked += tokens
      s.respond([t for t in s.asking if not hold(t)])
      if s.to_feed():
        for row, piece, start in s.feeds(self.rows, self.C):
          assert 1 <= len(piece) <= self.C
          if start == 0:
            self.state[row.slot] = []
          assert len(self.state[row.slot]) == start
          self.state[row.slot] += piece
          self.fed += len(piece)
      talks = s.lanes(self.lanes)
      self.widest = max(self.widest, len(talks))
      assert len({t.slot for t in talks}) == len(talks)
      assert {t.slot for t in talks}.isdisjoint(list(s.idle_slots(talks)))
      pieces = []
      for talk in talks:
        n = min(self.J, talk.left)
        # What the state holds is the conversation without its pending token.
        pending = talk.tokens[-1] if talk.tokens else talk.queue[0]
        whole = talk.conversation.said + talk.tokens
        assert self.state[talk.slot] == whole[:-1] and pending == whole[-1]
        new = [60 + i for i in range(n)]
        self.state[talk.slot] += [pending, *new[:-1]]
        pieces.append((new, [0.0] * n, talk.left > n))
      s.decoded(talks, pieces, (STOP,), served=False)
    raise AssertionError("stuck")


def test_a_shared_prompt_is_fed_once_and_its_state_copied():
  schedule = Schedule(9, 64)
  group = [Talker([1, 2, 3, 4, 5], turns=2) for _ in range(8)]
  schedule.add(group, GREEDY)
  device = Device(schedule, 8, 4, 3, 2)
  device.run()
  assert all(c.finished for c in group)
  # 4 of 5 prompt tokens once, then each response's two tokens and the last sampled one.
  assert device.fed == 4 + 8 * 2
  assert device.forked == 7 * 4  # The last one goes on where the prompt was fed.
  # Each for itself would feed 8 × 4 + 8 × 2.


def test_waiting_conversations_give_their_lanes_to_others():
  """FAULTS: lanes are not conversations."""
  schedule = Schedule(6, 64)
  for i in range(6):
    schedule.add([Talker([1, 2, 3 + i], turns=2)], GREEDY)
  device = Device(schedule, 2, 6, 8, 4)
  asked = {}

  def hold(talk):  # Each search takes five rounds.
    asked[id(talk)] = asked.get(id(talk), 0) + 1
    return asked[id(talk)] <= 5

  device.run(hold)
  assert device.widest == 2
  # Two lanes, six conversations: while the first two wait, the others decode.
  assert min(asked.values()) == 6


def test_prompts_wait_until_those_before_them_have_places():
  """Two groups of more members than slots: neither keeps the other's last slot."""
  schedule = Schedule(2, 64)
  groups = [[Talker([1, 2, 3 + i], turns=2) for _ in range(5)] for i in range(2)]
  for group in groups:
    schedule.add(group, GREEDY)
  device = Device(schedule, 1, 2, 8, 2)
  device.run()
  assert all(c.finished for group in groups for c in group)
  assert device.fed == 2 * 2 + 10 * 2


@pytest.mark.parametrize("slots, fed", [(1, 3 * 2), (2, 2)])
def test_a_single_slot_cannot_keep_a_prompt(slots, fed):
  schedule = Schedule(slots, 64)
  schedule.add([Talker([1, 2, 3]) for _ in range(3)], GREEDY)
  device = Device(schedule, 1, 1, 8, 8)
  device.run()
  assert device.fed == fed


def test_a_prompt_of_one_token_is_decoded_from_an_empty_state():
  schedule = Schedule(2, 64)
  schedule.add([Talker([1]), Talker([1])], GREEDY)
  assert schedule.begin() == [(0, 1, 0)]
  assert [(t.fed, t.queue) for t in schedule.lanes(2)] == [(0, [1]), (0, [1])]


@settings(max_examples=60, deadline=None)
@given(
  st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=14),
  st.integers(1, 7), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3),
)
def test_everything_ends_and_every_token_is_fed_or_decoded_once(talks, slots, rows, C, J, patience):
  schedule = Schedule(slots, 64)
  conversations = [Talker([9] * (1 + p) + [p], turns, size) for p, turns, size in talks]
  for group in shared_prompts(conversations):
    schedule.add(group, GREEDY)
  device = Device(schedule, max(1, slots - 1), rows, C, J)
  waits = {}

  def hold(talk):
    waits[id(talk)] = waits.get(id(talk), 0) + 1
    return waits[id(talk)] % (patience + 1) != 0

  device.run(hold)
  assert all(c.finished for c in conversations)
  decoded = sum(turns * size for _, turns, size in talks)
  passed = sum(len(c.said) - 1 for c in conversations)
  assert device.fed + device.forked + decoded == passed
  prompts = {tuple(c.prompt) for c in conversations}
  if slots > 1:
    own = sum(2 * (turns - 1) for _, turns, _ in talks)
    assert device.fed == sum(len(p) - 1 for p in prompts) + own


def test_groups_are_dealt_whole_unless_there_are_too_few():
  a, b, c = ([Talker([i, i])] * 4 for i in range(3))
  assert dealt([*a, *b, *c], 2) == [[a, c], [b]]
  assert dealt(a, 2) == [[a[:2]], [a[2:]]]
  singles = [Talker([1, i]) for i in range(5)]
  assert [sum(map(len, part)) for part in dealt(singles, 3)] == [2, 2, 1]


def test_a_prompt_that_fills_a_slot_is_refused():
  with pytest.raises(ValueError, match="a prompt of 63 tokens leaves no room in 64"):
    Schedule(2, 64).add([Talker([1] * 63)], GREEDY)


def test_a_served_conversation_may_end_its_turn():
  class Served(Talker):
    sampling = Sampling(0.5, 3, 0.9)
    heard = lambda self, tokens, logps: len(tokens) < 4

  schedule = Schedule(1, 64)
  conversation = Served([1, 2], size=20)
  schedule.add([conversation], None)
  device = Device(schedule, 1, 1, 8, 2)
  run = schedule.decoded
  schedule.decoded = lambda talks, pieces, stop, served: run(talks, pieces, stop, served=True)
  device.run()
  assert conversation.said == [1, 2, 60, 61, 60, 61]
