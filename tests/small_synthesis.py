"""Four pages, and an endpoint that stands in for the model that reads them and answers questions."""

import collections
import json

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PAGES = (
  {
    "id": "book/mom-test", "title": "The Mom Test",
    "text": "The Mom Test is a book about customer interviews. "
            "The Mom Test was written by Rob Fitzpatrick.",
  },
  {
    "id": "person/fitzpatrick", "title": "Rob Fitzpatrick",
    "text": "Rob Fitzpatrick wrote The Mom Test. His first startup went through Y Combinator in "
            "its Summer 2007 batch.",
  },
  {
    "id": "accelerator/yc", "title": "Y Combinator",
    "text": "Y Combinator is a startup accelerator. Y Combinator was launched in March 2005.",
  },
  {
    "id": "batch/s07", "title": "Summer 2007 batch",
    "text": "Founders of the batch at Y Combinator included Rob Fitzpatrick. Y Combinator paid "
            "each team.",
  },
)
QUESTION = (
  "Which book was written by the person whose first startup went through the accelerator launched "
  "in March 2005, in its Summer 2007 batch?"
)


def fact(subject, kind, relation, object_, object_kind, phrase, evidence, inverse=None):
  return {
    "subject": subject, "subject_kind": kind, "relation": relation, "object": object_,
    "object_kind": object_kind, "phrase": phrase, "inverse": inverse, "evidence": evidence,
  }


WRITTEN = fact(
  "The Mom Test", "book", "written_by", "Rob Fitzpatrick", "person",
  "the book that was written by {x}", "The Mom Test was written by Rob Fitzpatrick.",
)
WENT = fact(
  "Rob Fitzpatrick", "person", "startup_accelerator", "Y Combinator", "accelerator",
  "the person whose first startup went through {x}, in its Summer 2007 batch",
  "His first startup went through Y Combinator in its Summer 2007 batch.",
)
LAUNCHED = fact(
  "Y Combinator", "accelerator", "launched", "March 2005", None, "the accelerator launched in {x}",
  "Y Combinator was launched in March 2005.",
)
# What the model says of each page; some of it does not hold.
FACTS = {
  "The Mom Test": [WRITTEN],
  "Rob Fitzpatrick": [WENT, WENT | {"evidence": "He sold his first startup."}],
  "Y Combinator": [LAUNCHED, LAUNCHED | {"phrase": "the launch of Y Combinator in {x}"}],
  "Summer 2007 batch": [{"subject": "Y Combinator"}],
}


class Reader:
  """Reads pages, and answers questions after one search.

  Args:
    answers: final answers in turn; the last one stays.
    raw: replies to extraction prompts in place of FACTS, by title.
    cut: titles whose replies end at the limit of tokens.
  """

  def __init__(self, answers=("The Mom Test",), raw=None, cut=()):
    self.answers, self.raw, self.cut = list(answers), raw or {}, cut
    self.asked = collections.Counter()
    self.questions, self.statuses = [], []

  def app(self) -> Starlette:
    return Starlette(routes=[
      Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"]),
    ])

  async def models(self, request: Request):
    del request
    return JSONResponse({"data": [{"id": "reader", "owned_by": "stand-in"}]})

  async def chat(self, request: Request):
    body = await request.json()
    if "top_k" in body:
      return JSONResponse({"error": {"message": "Unrecognized argument: top_k"}}, 400)
    last = body["messages"][-1]
    if last["content"] and "Title: " in last["content"]:
      if self.statuses:
        return JSONResponse({}, self.statuses.pop(0))
      title = last["content"].split("Title: ")[1].split("\n")[0]
      self.asked[title] += 1
      text = self.raw.get(title, f"Here:\n{json.dumps({'facts': FACTS[title]})}")
      finish = "length" if title in self.cut else "stop"
      return self.reply({"role": "assistant", "content": text}, finish)
    if last["role"] == "tool":
      answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
      return self.reply({"role": "assistant", "content": f"{answer}."}, "stop")
    self.questions.append(last["content"])
    function = {"name": "search_web", "arguments": '{"query": "launched March 2005"}'}
    call = {"id": "a", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return self.reply(message, "tool_calls")

  def reply(self, message, finish):
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return JSONResponse({"choices": [choice]})
