"""A conversation and an answer in no dialect: what every translation goes through.

A request is read into a `Prompt` by the client's dialect and written from it by the upstream's. An answer is read into
events by the upstream's dialect, whether it streams or comes whole, and written from them by the client's, as a stream
or whole. So n dialects need n readers and n writers and not n times n translators.

`where` names the place in the client's request a part came from, for the error that says it cannot be sent on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from providers.exchange import Failure, Usage


class Role(StrEnum):
    """Who speaks. Results of tools are the user's."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Text:
    """Words, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a document: base64 `data` of `media_type`, or a `url` the upstream is to fetch. One of them is
    set.
    """

    where: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    name: str | None = None
    detail: str | None = None
    """How closely a picture is to be looked at: low, high or auto."""

    @property
    def is_image(self) -> bool:
        """An image, as far as one can tell: what comes by URL is one."""
        return self.media_type is None or self.media_type.startswith("image/")


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of an earlier turn. Without its signature a vendor that checks signatures must not be sent it.

    `sealed` is reasoning only the vendor can read; `text` is empty then.
    """

    text: str
    signature: str | None = None
    sealed: str | None = None

    @property
    def vouched(self) -> bool:
        """A vendor that checks has said this itself."""
        return self.signature is not None or self.sealed is not None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call the assistant made. `arguments` is JSON text as the model wrote it, "" for none."""

    id: str
    name: str
    arguments: str
    where: str
    signature: str | None = None
    """Gemini's thought signature, which must come back with the call."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave. `name` is the tool's, found by the id in an earlier turn; None when no turn made that call."""

    id: str
    name: str | None
    parts: tuple[Text | Media, ...]
    where: str
    is_error: bool = False

    @property
    def text(self) -> str:
        """Its words, one part a line."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


Part = Text | Media | Thought | ToolUse | ToolResult


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says, in order."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str | None
    schema: dict[str, Any]
    strict: bool | None = None


class Choice(StrEnum):
    """Whether tools may, must or must not be called."""

    AUTO = "auto"
    ANY = "any"
    NONE = "none"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Format:
    """The answer must be JSON; of `schema` when there is one."""

    schema: dict[str, Any] | None = None
    name: str = "answer"
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. None and empty mean that the client left the field to the model's default."""

    turns: tuple[Turn, ...]
    stream: bool = False
    output_cap: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    choice: Choice | None = None
    tool_name: str | None = None
    """The tool of `Choice.NAMED`."""
    parallel_tools: bool | None = None
    format: Format | None = None
    effort: str | None = None
    """none, minimal, low, medium, high, xhigh or max."""
    thinking_budget: int | None = None
    """Tokens the model may think, where the client gave a number; `effort` then says about the same."""
    verbosity: str | None = None
    """low, medium or high."""
    user: str | None = None
    service_tier: str | None = None

    def leading_system(self) -> tuple[list[str], tuple[Turn, ...]]:
        """The words of all system turns, in order, and the other turns with neighbours of one role made one.

        Vendors that keep the system apart from the conversation take it at its head only, so a later system turn moves
        there. Thoughts without a signature are left out: those vendors refuse them.
        """
        words: list[str] = []
        turns: list[Turn] = []
        for turn in self.turns:
            if turn.role is Role.SYSTEM:
                words.extend(part.text for part in turn.parts if isinstance(part, Text))
                continue
            parts = tuple(part for part in turn.parts if not isinstance(part, Thought) or part.vouched)
            if turns and turns[-1].role is turn.role:
                turns[-1] = Turn(turn.role, turns[-1].parts + parts)
            elif parts:
                turns.append(Turn(turn.role, parts))
        return words, tuple(turns)


class Reason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Began:
    """The upstream has begun to answer."""

    id: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Mused:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Signed:
    """The vendor's signature of the reasoning just given, or more of it."""

    signature: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """Reasoning that only the vendor can read; it must come back as it is."""

    data: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The upstream says that it is alive, and nothing else."""


@dataclass(frozen=True, slots=True)
class Refused:
    """More of why the model will not answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call begins. `index` counts calls from 0; `signature` is Gemini's."""

    index: int
    id: str
    name: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Argued:
    """More of a call's arguments, JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The model has stopped. Usage may still follow. `stop` is the stop sequence it met, where the upstream says."""

    reason: Reason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The usage as far as it is known; the last one counts."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Complete:
    """The upstream's own sign that the answer is whole."""


@dataclass(frozen=True, slots=True)
class Broke:
    """The upstream told of an error, or sent something that is none of its words."""

    failure: Failure


Event = (
    Began | Said | Mused | Signed | Sealed | Refused | Called | Argued | Ended | Counted | Waiting | Complete | Broke
)


@dataclass(slots=True)
class Calls:
    """Tool calls of one answer as an upstream numbers its blocks: block number -> call, and whether it was given
    arguments.
    """

    index: dict[int, int] = field(default_factory=dict)
    argued: set[int] = field(default_factory=set)

    def begin(self, block: int, id_: str, name: str) -> Called:
        """A call begins in this block."""
        index = self.index[block] = len(self.index)
        return Called(index, id_, name)

    def argue(self, block: int, text: Any) -> list[Event]:
        """Arguments for the block's call; nothing for a block that is no call, nor for what is no text."""
        index = self.index.get(block)
        if index is None or not isinstance(text, str) or not text:
            return []
        self.argued.add(block)
        return [Argued(index, text)]

    def close(self, block: int) -> list[Event]:
        """The block is complete: a call without arguments is given an empty object, or clients cannot parse it."""
        index = self.index.get(block)
        if index is None or block in self.argued:
            return []
        self.argued.add(block)
        return [Argued(index, "{}")]
