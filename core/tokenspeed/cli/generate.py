"""`tokenspeed generate [MODEL] --prompt TEXT`: one answer on stdout, without a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.cli.settings import add_model, add_settings, read_settings
from tokenspeed.config.load import explicit_settings
from tokenspeed.config.schema import EngineConfig
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.tokenizer.tokenizer import Tokenizer


def add_parser(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "generate",
        help="answer one prompt on stdout",
        description="Answer one prompt, streaming to stdout; the engine runs in this process.",
    )
    add_model(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="the prompt; - or absent: read stdin")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text itself, without the chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--max-tokens", type=int, help="output tokens; default: what fits")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    parser.add_argument("--top-k", type=int, default=0, help="0 keeps all (default: 0)")
    parser.add_argument("--seed", type=int, help="of the sampling; default: a random one")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the model's end")
    add_settings(parser, EngineConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the answer while it comes."""
    config = read_settings(args, EngineConfig)
    params = _params(args)
    params.validate(vocab_size=1 << 31)  # no flag names a token id
    if config.model:
        existing_model(config.model)
    prompt = sys.stdin.read() if args.prompt in (None, "-") else args.prompt
    if not prompt:
        raise ConfigError("the prompt is empty, some text is needed; give --prompt or pipe it in")
    from tokenspeed.engine.llm import LLM
    from tokenspeed.server.progress import StartProgress

    with StartProgress() as progress:
        llm = LLM(progress=progress.show, **explicit_settings(EngineConfig, config))
    with llm:
        ids = _prompt_ids(llm.tokenizer, args, prompt)
        for text in llm.stream(ids, params):
            print(text, end="", flush=True)
    print()
    return 0


def _prompt_ids(tokenizer: Tokenizer, args: argparse.Namespace, prompt: str) -> list[int]:
    from tokenspeed.tokenizer.chat import ChatTemplate

    template = None if args.raw else ChatTemplate.of(tokenizer)
    if template is None:
        if args.system is not None:
            raise ConfigError("--system needs a chat template; drop --system, or --raw if given")
        return tokenizer.encode(prompt)
    head = [] if args.system is None else [{"role": "system", "content": args.system}]
    text = template.render([*head, {"role": "user", "content": prompt}])
    return tokenizer.encode(text, add_special_tokens=False)


def _params(args: argparse.Namespace) -> SamplingParams:
    from tokenspeed.sampling.params import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        stop=tuple(args.stop),
        max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos,
    )
