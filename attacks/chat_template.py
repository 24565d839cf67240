"""A template of conversations, which comes with a model, that is a program; and tables that are.

An attacker hopes for an environment of jinja2 that lets a template reach Python's objects.
"""

import ast
import json
from pathlib import Path

from victims import model, node

from ortpartial import load
from ortpartial.cli.token_rows import TextReader

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch harm') }}",
    "{{ messages.append.__self__.clear.__globals__ }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__bases__ }}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{% for i in range(10**10) %}x{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ 'x' }}{% if",
]


def naive():
    from jinja2 import Environment

    text = Environment().from_string(ESCAPES[0]).render(messages=[])
    return "class" in text and eval("__import__('pathlib').Path('harm').touch() is None")


def attacks():
    for text in ESCAPES:
        yield text[3:34], lambda text=text: render(text)
    yield "settings that are a list", settings
    yield "scopes that are an expression", scopes


def render(text):
    Path("chat_template.jinja").write_text(text)
    texts = []

    class Reader(TextReader):
        """It keeps what the template writes, for which it needs no tokenizer."""

        def read_text(self, text, start=0, is_whole=True):
            texts.append(text)

    Reader(".").read_messages([{"role": "user", "content": "hello"}], "a line")
    is_harmed = Path("harm").exists() or "class" in texts[0] or "root:" in texts[0]
    return f"HARMED: {texts}" if is_harmed else f"unharmed: {texts}"


def settings():
    Path("genai_config.json").write_text(json.dumps({"model": [1, 2]}))
    return f"unharmed: {TextReader('.').settings}"


def scopes():
    proto = model([node("Mul", ["x", "w"], ["y"], name="n")])
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes",
                                           value="[__import__('pathlib').Path('harm').touch()] * 3")
    load(proto)._repr_html_()
    return "HARMED" if Path("harm").exists() else f"unharmed: {ast.__name__} reads literals alone"
