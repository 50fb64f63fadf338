"""Decides what a request will be answered before it runs: how long each choice is, why it ends, and its text."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from providers.simulated.ask import Ask, Kind, fixed_tokens, prompt_tokens
from providers.simulated.chance import log_normal, seed_of
from providers.simulated.errors import ApiError
from providers.simulated.service import Lengths, ServiceSettings
from providers.simulated.text import TOKEN_BYTES, block_keys, padded, word


@dataclass(slots=True)
class Choice:
    """One answer that will be generated. Sizes are tokens."""

    index: int
    prompt: bytes
    output_tokens: int
    max_tokens: int
    reason: str
    """The finish_reason that its last token carries."""
    seed: int
    offset: int = 0
    fixed: str | None = None
    """The text if it is given; tokens past its end are empty."""

    def piece(self, position: int) -> str:
        """The text of the output token at this position (from 0); up to four ASCII characters."""
        if self.fixed is None:
            return word(self.seed, self.offset + position)
        return self.fixed[TOKEN_BYTES * position : TOKEN_BYTES * (position + 1)]

    def text(self, tokens: int) -> str:
        """The first so many tokens as text."""
        if self.fixed is None:
            return "".join([word(self.seed, self.offset + position) for position in range(tokens)])
        return self.fixed[: TOKEN_BYTES * tokens]

    def grown(self, keys: tuple[Hashable, ...], block_tokens: int) -> Callable[[int], tuple[Hashable, ...]]:
        """`Request.grown` for this answer behind a prompt with these block keys."""
        rest = self.prompt[len(keys) * block_tokens * TOKEN_BYTES :]
        after = keys[-1] if keys else 0
        return lambda tokens: block_keys(rest + padded(self.text(tokens).encode()), block_tokens, after)


def plan_choices(ask: Ask, settings: ServiceSettings, chance: int) -> list[Choice]:
    """The choices of a request; an embedding has one without output for each input.

    With temperature 0 or a seed, text and length follow from the request alone, and a partial answer goes on where it
    stopped. Otherwise `chance` (any number) decides too. Raises ApiError 400 when the context is too short.
    """
    return [
        _choice(ask, prompt, number * ask.n + copy, copy, settings, chance)
        for number, prompt in enumerate(ask.prompts)
        for copy in range(ask.n)
    ]


def _choice(ask: Ask, prompt: bytes, index: int, copy: int, settings: ServiceSettings, chance: int) -> Choice:
    tokens = prompt_tokens(prompt)
    context = settings.engine.context
    room = context - tokens
    if room < 1:
        raise context_error(context, tokens, None, ask.kind)
    if ask.kind is Kind.EMBEDDING:
        return Choice(index, prompt, 0, 0, "stop", 0)
    if ask.max_tokens is not None and ask.max_tokens > room:
        raise context_error(context, tokens, ask.max_tokens, ask.kind)
    cap = room if ask.max_tokens is None else ask.max_tokens
    said = ask.context if ask.kind is Kind.CHAT else prompt
    if ask.greedy and ask.seed is None:
        seed = seed_of(ask.model, said)
    elif ask.seed is not None:
        seed = seed_of(ask.model, said, ask.seed, copy)
    else:
        seed = seed_of(chance, index)
    choice = Choice(index, prompt, cap, cap, "length", seed, ask.offset, None)
    if ask.fixed is not None:
        _fix(choice, ask.fixed[TOKEN_BYTES * ask.offset :], "tool_calls" if ask.tool else "stop")
    elif ask.max_tokens is None or (settings.lengths is Lengths.DRAWN and not ask.exact):
        drawn = max(1, round(log_normal(seed, 0, settings.output_median, settings.output_sigma))) - ask.offset
        if drawn < 1:
            _fix(choice, "", "stop")
        elif drawn <= cap:
            choice.output_tokens, choice.reason = drawn, "stop"
    if ask.stop:
        _stop_at(choice, ask.stop)
    return choice


def _fix(choice: Choice, text: str, reason: str) -> None:
    choice.fixed = text
    needed = fixed_tokens(text)
    if needed <= choice.max_tokens:
        choice.output_tokens, choice.reason = needed, reason


def _stop_at(choice: Choice, stops: tuple[str, ...]) -> None:
    """End at the first stop string that the text would have contained; the string itself is left out."""
    text = choice.text(choice.output_tokens)
    found = min(((text.find(stop), len(stop)) for stop in stops if stop in text), default=None)
    if found is not None:
        at, length = found
        choice.fixed = text[:at]
        choice.output_tokens = -(-(at + length) // TOKEN_BYTES)
        choice.reason = "stop"


def context_error(context: int, prompt: int, output: int | None, kind: Kind) -> ApiError:
    """Too long a prompt, or prompt and maximum output together. All figures are tokens."""
    wanted = f"a prompt of {prompt} tokens" if output is None else f"{prompt} prompt tokens and {output} output tokens"
    return ApiError(
        400,
        f"This model's maximum context length is {context} tokens. However, the request has {wanted}.",
        param="messages" if kind is Kind.CHAT else "prompt" if kind is Kind.COMPLETION else "input",
        code="context_length_exceeded",
    )
