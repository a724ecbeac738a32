"""Chat messages to prompt text through the model's own Jinja template (`sandbox.py` bounds it).

Renders what transformers' `apply_chat_template` renders. Knows nothing of tokens.
Source: transformers, utils/chat_template_utils.py: environment options, filters, the order of
message clean-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.parser import Parser

from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.tokenizer.sandbox import ChatEnvironment
from tokenspeed.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

# Names that a message's reasoning comes under; templates read the first, some the second.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_MAX_REASON_CHARS = 500
_PROBE = "probe_of_arguments"
MAX_MESSAGES = 16_384
"""Messages of one conversation: many more than any context holds, few enough to render."""


class ChatTemplate:
    """A compiled template; safe to share between threads.

    Args:
        source: Jinja source.
        name: model name, for messages.
        variables: what else the template may read, such as bos_token.
        environment: with other bounds than the usual ones.

    Raises:
        ConfigError: the source is no valid template.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "",
        variables: Mapping[str, Any] | None = None,
        environment: ChatEnvironment | None = None,
    ) -> None:
        self._environment = environment or ChatEnvironment()
        try:
            # Parsed apart: what is compiled has counted loops in place of the written ones.
            tree = Parser(self._environment, source).parse()
            self._takes_parts = _iterates_content(tree)
            self._template = self._environment.from_string(source)
        except Exception as error:  # also Python's own compiler, when it is nested too deeply
            line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ConfigError(
                f"cannot use the chat template of {name or 'the model'}: {line}{_reason(error)}; "
                "a Jinja template was expected; correct chat_template.jinja"
            ) from error
        self._variables = dict(variables or {})
        self.source = source
        self.reads = frozenset(node.name for node in tree.find_all(nodes.Name))
        """Names of variables that it uses, among them the request's, such as "tools"."""

    @staticmethod
    def of(tokenizer: Tokenizer) -> ChatTemplate | None:
        """Compile the model's own template; None when it has none."""
        if tokenizer.chat_template is None:
            return None
        return ChatTemplate(
            tokenizer.chat_template, name=tokenizer.name, variables=tokenizer.special_tokens
        )

    @cached_property
    def reads_argument_text(self) -> bool:
        """Whether a call's arguments must be JSON text: an object fails, or is shown as Python's.

        Found by rendering an earlier call both ways: no template is understood.
        """
        shown = [self._render_probe(form) for form in ({_PROBE: "x"}, f'{{"{_PROBE}": "x"}}')]
        is_object_read = _PROBE in shown[0] and f"'{_PROBE}'" not in shown[0]
        return not is_object_read and _PROBE in shown[1]

    def _render_probe(self, arguments: Any) -> str:
        call = {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "probe", "arguments": arguments},
        }
        messages = (
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "x", "tool_call_id": "abcdefghi", "name": "probe"},
        )
        function = {"name": "probe", "description": "x", "parameters": {"type": "object"}}
        try:
            return self.render(messages, tools=[{"type": "function", "function": function}])
        except RequestError:
            return ""

    def render(
        self,
        messages: Sequence[Message],
        /,
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
            RequestError: the template refuses the messages, fails on them or does too much, or a
                part is not text.
        """
        if len(messages) > MAX_MESSAGES:
            raise RequestError(
                f"messages holds {len(messages)} messages, at most {MAX_MESSAGES} are allowed; "
                "send fewer",
                param="messages",
            )
        chat = [self._prepared(message, index) for index, message in enumerate(messages)]
        context = {
            "documents": None,
            **self._variables,
            **variables,
            "messages": chat,
            "tools": list(tools) if tools is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render(self._template, context)
        except Exception as error:  # a template is code: anything may come out of it
            raise RequestError(
                f"cannot apply the chat template to these messages: {_reason(error)}; the "
                "model's template decides which roles, orders and contents are allowed; change the "
                "messages",
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


def _reason(error: Exception) -> str:
    """Return an exception's text, short; its type where that says more."""
    text = getattr(error, "message", None) or str(error)
    if not isinstance(error, jinja2.TemplateError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + "..."


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


def _iterates_content(tree: nodes.Template) -> bool:
    """Say whether the template loops over some message's content, so that it takes parts."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"
