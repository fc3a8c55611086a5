"""One question asked in several formats, its answer unchanged.  PURE.

Spec     1.3 (format-diversity augmentation: "Show a list of …", "Summarise … in a table").
"""

import random

FORMATS = {
  "plain": "{question}",
  "sentence": "{question} Answer in one full sentence.",
  "short": "{question} Reply with the answer only.",
  "list": "{question} Show a list of the facts that lead to the answer, then the answer.",
  "steps": "{question} Number your steps and end with the answer.",
  "table": "{question} Summarise what you found in a table, then state the answer.",
  "bold": "{question} Set the answer in bold.",
  "bullets": "Show as bullet points what you find out about this, ending with the answer: "
             "{question}",
  "sources": "{question} Say which source the answer comes from.",
}


def with_format(question: str, *, seed: int, plain: float = 0.5) -> tuple[str, str]:
  """A question with a format instruction, or without one.

  Args:
    question: what is asked; it alone and the seed decide the format.
    seed: of the draw.
    plain: share of questions that get no instruction.

  Returns:
    The text to ask and the name of its format.

  Raises:
    ValueError: plain outside [0, 1].
  """
  if not 0 <= plain <= 1:
    raise ValueError(f"plain must lie in [0, 1], got {plain}")
  draw = random.Random(f"format/{seed}/{question}")
  name = "plain" if draw.random() < plain else draw.choice([f for f in FORMATS if f != "plain"])
  return FORMATS[name].format(question=question), name
