"""Chat messages to prompt text through the model's own Jinja template, in a sandbox.

Renders what transformers' `apply_chat_template` renders. Knows nothing of tokens.
Source: transformers, utils/chat_template_utils.py: environment options, filters, the order of
message clean-ups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

# Names that a message's reasoning comes under; templates read the first, some the second.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A compiled template; safe to share between threads.

    Args:
        source: Jinja source.
        name: model name, for messages.
        variables: what else the template may read, such as bos_token.

    Raises:
        ConfigError: the source is no valid template.
    """

    def __init__(
        self, source: str, *, name: str = "", variables: Mapping[str, Any] | None = None
    ) -> None:
        environment = _environment()
        try:
            self._takes_parts = _iterates_content(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"cannot use the chat template of {name or 'the model'}: line {error.lineno}: "
                f"{error.message}; a Jinja template was expected; correct chat_template.jinja"
            ) from error
        self._variables = dict(variables or {})

    @staticmethod
    def of(tokenizer: Tokenizer) -> ChatTemplate | None:
        """Compile the model's own template; None when it has none."""
        if tokenizer.chat_template is None:
            return None
        return ChatTemplate(
            tokenizer.chat_template, name=tokenizer.name, variables=tokenizer.special_tokens
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt text.

        Args:
            messages: role, content (a string or a list of text parts) and the rest of OpenAI's.
            add_generation_prompt: end with the head of the assistant's answer.
            tools: function schemas, for templates that describe tools.
            variables: further template variables such as enable_thinking.
        Raises:
            RequestError: the template refuses the messages, or a part is not text.
        """
        chat = [self._prepared(message, index) for index, message in enumerate(messages)]
        context = {"documents": None, **self._variables, **variables}
        try:
            return self._template.render(
                messages=chat,
                tools=list(tools) if tools is not None else None,
                add_generation_prompt=add_generation_prompt,
                **context,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RequestError(
                f"cannot apply the chat template to these messages: {error}; the model's template "
                "decides which roles, orders and contents are allowed; change the messages",
                param="messages",
            ) from error

    def _prepared(self, message: Message, index: int) -> dict[str, Any]:
        """Drop nulls, join text parts where the template reads strings, name the reasoning."""
        cleaned = {key: value for key, value in message.items() if value is not None}
        content = cleaned.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            texts = [_text_of(part, index) for part in content]
            if not self._takes_parts:
                cleaned["content"] = "\n".join(texts)
        found = [cleaned[key] for key in _REASONING_KEYS if key in cleaned]
        if found:
            cleaned = {"thinking": found[0], **cleaned, "reasoning_content": found[0]}
        return cleaned


def _text_of(part: Any, index: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(
        f"cannot read the content of messages[{index}]: a part of type {kind!r}; only parts of type"
        ' "text" with a string in "text" are supported; send text',
        param="messages",
    )


class _GenerationTag(Extension):
    """Accepts {% generation %} blocks, which only mark text for training."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _iterates_content(tree: nodes.Template) -> bool:
    """Say whether the template loops over some message's content, so that it takes parts."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"
