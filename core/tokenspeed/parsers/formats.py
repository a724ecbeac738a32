"""The parsers that ship in the core: what each parses, and which models it is for.

Names and plain text only: a parser's file is imported when it is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROOM = "tokenspeed.parsers"
_CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"


@dataclass(frozen=True, slots=True)
class Format:
    """One offer.

    Args:
        target: what makes the parser, relative to this room: "module:name".
        parses: as in the offer's facts, and so the next two.
        marks: chat templates of its models hold all of these.
        model_types: as config.json names them.
    """

    target: str
    parses: tuple[str, ...]
    marks: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return the whole "module:name"."""
        return f"{_ROOM}.{self.target}"

    @property
    def facts(self) -> dict[str, tuple[str, ...]]:
        """Return the facts of the offer."""
        return {
            "parses": self.parses,
            "template_marks": self.marks,
            "model_types": self.model_types,
        }


def _calls(target: str, *marks: str, types: tuple[str, ...] = ()) -> Format:
    return Format(target, ("tool_calls",), marks, types)


def _thoughts(*marks: str, target: str = "think:ThinkParser", types: str = "") -> Format:
    return Format(target, ("reasoning",), marks, tuple(types.split()))


FORMATS: dict[str, Format] = {
    "hermes": _calls("hermes:Hermes", "<tool_call>", types=("qwen2", "qwen3", "qwen3_moe")),
    "qwen3_coder": _calls(
        "qwen3_coder:Qwen3Coder",
        "<tool_call>",
        "<function=",
        "<parameter=",
        types=("qwen3_5", "qwen3_5_moe"),
    ),
    "llama3_json": _calls(
        "llama3_json:Llama3Json", '"parameters": dictionary of argument name', types=("llama",)
    ),
    "pythonic": _calls("pythonic:Pythonic", "[func_name1(", types=("llama4", "olmo3")),
    "mistral": _calls(
        "mistral:Mistral", "[TOOL_CALLS]", types=("mistral", "mistral3", "mixtral", "ministral")
    ),
    "mistral_named": _calls("mistral:MistralNamed", "[TOOL_CALLS]", "[ARGS]"),
    "deepseek_v3": _calls("deepseek:DeepSeekV3", _CALLS, _SEPARATOR, "```json"),
    "deepseek_v31": _calls("deepseek:DeepSeekV31", _CALLS, _SEPARATOR),
    "kimi_k2": _calls("kimi_k2:KimiK2", "<|tool_calls_section_begin|>", types=("kimi_k2",)),
    "glm45": _calls(
        "glm:Glm",
        "<tool_call>",
        "<arg_key>",
        "<arg_value>",
        types=("glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
    ),
    "minimax_m1": _calls("minimax:MiniMaxM1", "<tool_calls>", types=("minimax", "minimax_m1")),
    "minimax_m2": _calls("minimax:MiniMaxM2", "<minimax:tool_call>", types=("minimax_m2",)),
    "gpt_oss": Format(
        "harmony:Harmony",
        ("reasoning", "tool_calls"),
        ("<|channel|>", "<|message|>", "<|start|>"),
        ("gpt_oss",),
    ),
    "think": _thoughts("</think>"),
    "deepseek_r1": _thoughts("</think>", "<\uff5cAssistant\uff5c>", types="deepseek_v3"),
    "qwen3": _thoughts(
        "</think>", "<|im_start|>", types="qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe"
    ),
    "glm": _thoughts("</think>", "<|observation|>", types="glm4_moe glm4_moe_lite glm_moe_dsa"),
    "kimi": _thoughts("</think>", "<|im_middle|>", target="think:kimi_think", types="kimi_k2"),
    "minimax": _thoughts("</think>", "<minimax:tool_call>", types="minimax_m1 minimax_m2"),
}
