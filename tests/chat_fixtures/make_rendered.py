"""Renders the conversations below with the published chat templates and stores what came out.

  python tests/chat_fixtures/make_rendered.py [--templates FOLDER] [--out rendered.json]

FOLDER holds the templates as *.jinja files, by default those of an installed `trl`; they are
rendered by transformers' own engine. The tests compare searchjax with the stored text, and with
the templates themselves where trl is installed.
"""

import argparse
import copy
import importlib.metadata
import importlib.util
import json
import pathlib

TEMPLATES = {"qwen3_5": "qwen3_5_think.jinja", "qwen3_instruct": "qwen3_instruct_2507.jinja"}
PRESERVED = "qwen3_6.jinja"  # Qwen3.5's text, with a switch that keeps every thinking block
STORED = pathlib.Path(__file__).parent / "rendered.json"

SEARCH = {"type": "function", "function": {
  "name": "search_web", "description": "Searches the web.",
  "parameters": {"type": "object", "properties": {"query": {"type": "string"}},
                 "required": ["query"]}}}
ODD = {"type": "function", "function": {
  "name": "odd-tool.v2", "description": 'Quotes "x", <b>&amp;</b>, ünïcode 北京, \\ and\nlines; '
  "</tools><|im_end|>",
  "parameters": {"type": "object", "properties": {
    "n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
    "z": {"type": ["string", "null"], "enum": ["a", None]}, "l": {"type": "array"},
    "o": {"type": "object"}, "s": {"type": "string"}}}}}
EVERY_TYPE = {
  "n": 5, "x": 0.5, "big": 1e22, "b": True, "f": False, "z": None, "l": [1, "zwei", None, True],
  "o": {"k": {"π": [0.1, False]}}, "s": "5", "empty": "", "none": [], "lines": "a\nb\n",
  "quote": 'say "hi" \\ <b>',
}
MARKUP = ("<|im_end|>\n<|im_start|>user\n<tool_response>\nfree</tool_response>\n<tool_call>\n"
          "<function=search_web>\n<parameter=query>\nq\n</parameter>\n</function>\n</tool_call>")


def system(text):
  return {"role": "system", "content": text}


def user(text):
  return {"role": "user", "content": text}


def tool(text):
  return {"role": "tool", "content": text}


def says(text="", *calls, **fields):
  message = {"role": "assistant", "content": text, **fields}
  if calls:
    message["tool_calls"] = [
      {"type": "function", "function": {"name": name, "arguments": arguments}}
      for name, arguments in calls
    ]
  return message


def asks(query):
  return ("search_web", {"query": query})


# name: (messages, tools); a third entry limits the styles.
CONVERSATIONS = {
  "one user": ([user("Hi")], None),
  "user and answer": ([user("Hi"), says("Hello.")], None),
  "system": ([system("Be short."), user("Hi")], None),
  "empty system": ([system(""), user("Hi")], None),
  "empty system with tools": ([system(""), user("Hi")], [SEARCH]),
  "blank system with tools": ([system(" \n "), user("Hi")], [SEARCH]),
  "tools without system": ([user("Who?")], [SEARCH]),
  "tools with system": ([system("You may search 3 times.\n"), user("Who?")], [SEARCH]),
  "two tools, odd description": ([system("s"), user("Who?")], [ODD, SEARCH]),
  "no tools in an empty list": ([user("Who?")], []),
  "call alone": ([user("Who?"), says("", asks("who"))], [SEARCH]),
  "call after text": ([user("Who?"), says("Let me look.", asks("who"))], [SEARCH]),
  "call and result": ([user("Who?"), says("", asks("who")), tool("He.")], [SEARCH]),
  "parallel calls, several results": (
    [user("Who?"), says("Both.", asks("a"), asks("b"), asks("c")), tool("A"), tool("B"),
     tool("C"), says("All.")], [SEARCH]),
  "tool loop of three turns with thinking": (
    [user("Who?"), says("", asks("a"), reasoning_content="first"), tool("A"),
     says("Hm.", asks("b"), reasoning_content="second\nline"), tool("B"),
     says("It is B.", reasoning_content="third")], [SEARCH]),
  "thinking before the last query": (
    [user("1?"), says("One.", reasoning_content="count"), user("2?"),
     says("Two.", reasoning_content="again")], None),
  "thinking, tools and a second query": (
    [system("s"), user("1?"), says("", asks("a"), reasoning_content="t1"), tool("A"),
     says("One.", reasoning_content="t2"), user("2?"), says("", asks("b"), reasoning_content="t3"),
     tool("B")], [SEARCH]),
  "three queries": ([user("a"), says("1"), user("b"), says("2"), user("c"), says("3")], None),
  "thinking inside the text": (
    [user("q"), says("<think>\nwhy\n</think>\n\nBecause.")], None),
  "thinking inside the text, before the last query": (
    [user("q"), says("<think>\nwhy\n</think>\n\nBecause."), user("r")], None),
  "thinking closed but not opened": ([user("q"), says("why\n</think>\n\n Because. ")], None),
  "two thinking blocks in a text": (
    [user("q"), says("<think>a</think>b<think>c</think>\n\n\n d", asks("x"))], [SEARCH]),
  "empty thinking field keeps the text": (
    [user("q"), says("see </think> here", reasoning_content="")], None),
  "thinking field beside a block in the text": (
    [user("q"), says("<think>in</think>out", reasoning_content="field")], None),
  "thinking to be trimmed": (
    [user("q"), says("  text \n", asks("x"), reasoning_content="\n\n  deep \n\n"), tool(" r \n")],
    [SEARCH]),
  "thinking and no text": ([user("q"), says("", reasoning_content="only")], None),
  "whitespace everywhere": (
    [system("\n s \t"), user("\n\n q \u00a0\u2003"), says("\n a \n", asks(" x \n")),
     tool("\n\n r\n "), says("\t\n b")], [SEARCH]),
  "text of blanks before a call": ([user("q"), says("  \n", asks("x")), tool("r")], [SEARCH]),
  "content None": ([user("q"), says(None, asks("x")), tool("r"), says(None)], [SEARCH]),
  "content None and thinking None": (
    [user("q"), says(None, asks("x"), reasoning_content=None), tool("")], [SEARCH]),
  "no content key": (
    [user("q"), {"role": "assistant", "tool_calls": [
      {"type": "function", "function": {"name": "search_web", "arguments": {"query": "x"}}}]},
     tool("r")], [SEARCH]),
  "call without the function wrapper": (
    [user("q"), {"role": "assistant", "content": "", "tool_calls": [
      {"name": "search_web", "arguments": {"query": "x"}}]}, tool("r")], [SEARCH]),
  "arguments of every type": ([user("q"), says("", ("odd-tool.v2", EVERY_TYPE))], [ODD]),
  "no arguments": ([user("q"), says("", ("now", {}), ("now", {})), tool("1"), tool("2")], [ODD]),
  "arguments as JSON text": (
    [user("q"), says("", ("search_web", '{"query": "näh \\"x\\""}')), tool("r"),
     says("", ("odd-tool.v2", '{"n": 5, "b": true, "z": null, "l": [1, 2.5], "o": {"a": "b"}}'))],
    [SEARCH, ODD]),
  "unicode": (
    [system("Ünïcode – 北京"), user("שלום 🌍 नमस्ते"), says("Москва 👩‍👩‍👧", asks("東京 \u2028 q")),
     tool("ไทย\u200b العربية"), says("e\u0301 ﬁ ½")], [SEARCH]),
  "text that looks like markup": (
    [system(MARKUP), user(MARKUP), says("Look: " + MARKUP.replace("<tool_call>", "<tool-call>"),
                                        ("search_web", {"query": MARKUP})), tool(MARKUP),
     says("Done " + MARKUP)], [SEARCH]),
  "template code in the text": (
    [user("{{ messages }} {% raw %}"), says("{# no #}{{- 1 }}", asks("{%- endfor %}")),
     tool("}}"), says("a & b < c > d 'e' \"f\"")], [SEARCH]),
  "a user who wraps a tool response": (
    [user("Who?"), says("", asks("a"), reasoning_content="kept"),
     user("<tool_response>\nA\n</tool_response>"), says("A.", reasoning_content="kept too")],
    [SEARCH]),
  "wrapped response with blanks, then a query": (
    [user("1"), says("x", reasoning_content="dropped"),
     user("  <tool_response>\nA\n</tool_response>\n"), says("y", reasoning_content="gone"),
     user("<tool_response> not closed"), says("z", reasoning_content="kept")], None),
  "two users in a row": ([user("a"), user("b"), says("c", reasoning_content="t")], None),
  "results, then the user": (
    [user("a"), says("", asks("x"), reasoning_content="t"), tool("r"), user("never mind"),
     says("ok")], [SEARCH]),
  "assistant first": ([says("How can I help?"), user("a"), says("b")], None),
  "two assistants in a row": ([user("a"), says("b"), says("c", asks("x")), tool("r")], [SEARCH]),
  "results that follow no call": ([user("a"), tool("r"), tool("s"), says("b")], None),
  "long history": (
    [system("s")] + [m for i in range(7) for m in (
      user(f"q{i}"), says("", asks(f"{i}"), asks(f"{i}+"), reasoning_content=f"t{i}"),
      tool(f"r{i}"), tool(""), says(f"a{i}.", reasoning_content="u"))], [SEARCH]),
  "content in parts": (
    [system([{"type": "text", "text": " one"}, {"type": "text", "text": " two "}]),
     user([{"type": "text", "text": "a"}, {"text": "b"}]),
     says([{"type": "text", "text": "<think>\nt\n</think>\n\nc"}]),
     {"role": "tool", "content": [{"type": "text", "text": "d"}]}], None, ("qwen3_5",)),
  "no user": ([system("s")], None),
  "only a wrapped response": ([user("<tool_response>x</tool_response>")], None),
  "second system": ([system("s"), user("q"), system("t"), user("r")], [SEARCH]),
}


def template_folder() -> pathlib.Path | None:
  """Where an installed trl keeps its templates; the package itself is not imported."""
  found = importlib.util.find_spec("trl")
  return pathlib.Path(found.origin).parent / "chat_templates" if found else None


def render(template: str, style: str, messages, tools, **settings) -> str | None:
  """The template's text, or None where it raises."""
  import jinja2
  from transformers.utils.chat_template_utils import render_jinja_template
  messages = copy.deepcopy(messages)
  if style == "qwen3_5":  # its template takes no JSON text for arguments
    for message in messages:
      for call in message.get("tool_calls", ()):
        call = call.get("function", call)
        if isinstance(call["arguments"], str):
          call["arguments"] = json.loads(call["arguments"])
  try:
    text, _ = render_jinja_template(
      [messages], tools=tools, chat_template=template, **settings
    )
  except jinja2.exceptions.TemplateError:
    return None
  return text[0]


def render_all(folder: pathlib.Path) -> dict[str, dict]:
  """By conversation and style: its text, and what a generation prompt adds to it."""
  read = lambda name: (folder / name).read_text(encoding="utf-8")
  rendered: dict[str, dict] = {}
  for name, (messages, tools, *styles) in CONVERSATIONS.items():
    rendered[name] = {"messages": messages, "tools": tools}
    for style in styles[0] if styles else TEMPLATES:
      template = read(TEMPLATES[style])
      text = render(template, style, messages, tools)
      entry: dict = {"text": text}
      if text is not None:
        for key, thinking in (("thinking", True), ("plain", False)):
          prompt = render(
            template, style, messages, tools, add_generation_prompt=True, enable_thinking=thinking
          )
          assert prompt.startswith(text), name
          entry[f"opening_{key}"] = prompt[len(text):]
        if style == "qwen3_5":
          kept = render(read(PRESERVED), style, messages, tools, preserve_thinking=True)
          # Qwen3.6 also writes True and None as JSON does; such arguments stay out of it.
          if kept != text and name != "arguments of every type" and "JSON" not in name:
            entry["preserved"] = kept
      rendered[name][style] = entry
  return rendered


def main() -> None:
  parser = argparse.ArgumentParser(description="Renders conversations with published templates.")
  parser.add_argument("--templates", type=pathlib.Path, default=template_folder())
  parser.add_argument("--out", type=pathlib.Path, default=STORED)
  options = parser.parse_args()
  if options.templates is None:
    parser.error("trl is not installed: name the templates' folder with --templates")
  try:
    version = importlib.metadata.version("trl")
  except importlib.metadata.PackageNotFoundError:
    version = "unknown"
  stored = {
    "made_by": "tests/chat_fixtures/make_rendered.py",
    "templates": {**TEMPLATES, "preserved": PRESERVED}, "trl": version,
    "transformers": importlib.metadata.version("transformers"),
    "conversations": render_all(options.templates),
  }
  options.out.write_text(
    json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
  )
  print(f"{options.out}: {len(CONVERSATIONS)} conversations")


if __name__ == "__main__":
  main()
